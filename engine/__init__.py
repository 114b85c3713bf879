"""Requests in, tokens out: scheduler, paged KV cache and model runner, without HTTP, HTML or SQL."""
