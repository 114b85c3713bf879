"""Text in and out of the model: tokenizers, detokenising, stop strings, chat templates. No torch, no HTTP."""
