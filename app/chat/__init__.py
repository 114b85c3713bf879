"""The chat page: conversations in a sidebar, messages that stream, everything kept."""

from app.chat.plugin import ChatPlugin

__all__ = ["ChatPlugin"]
