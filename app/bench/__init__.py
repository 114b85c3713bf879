"""Measurements: a load client for any OpenAI-compatible server, and what its figures mean."""
