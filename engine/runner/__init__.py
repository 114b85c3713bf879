"""Runs a step plan: plan to tensors, forward, logits, tokens; and fits the KV cache to memory."""
