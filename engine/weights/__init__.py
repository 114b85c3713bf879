"""Checkpoints: files that hold a model's tensors and configuration, under Hugging Face's names whatever the format."""
