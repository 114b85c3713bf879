"""Prefixes that stay in the KV cache: /api/pins."""

from app.pins.plugin import PinsPlugin

__all__ = ["PinsPlugin"]
