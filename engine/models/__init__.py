"""Decoder families: each a small file on the shared parts, that says how it differs from llama."""
