"""The OpenAI-shaped endpoint."""

from app.openai.plugin import OpenAIPlugin

__all__ = ["OpenAIPlugin"]
