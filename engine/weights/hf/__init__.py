"""ModelConfig from Hugging Face's config.json, family by family."""
