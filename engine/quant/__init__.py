"""Quantised checkpoints of Hugging Face's layout, a file for each format, and quantising on load."""
