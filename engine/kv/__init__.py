"""The paged KV cache: which block holds which tokens (torch-free), and the tensors behind the blocks."""
