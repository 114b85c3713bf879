"""GGUF files: parser, configuration, and tensors under the names that Hugging Face gives them."""
