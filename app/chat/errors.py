"""What can go wrong on the chat page, in words for the person in front of it."""

from __future__ import annotations

from engine.errors import PagewellError


class NotFound(PagewellError):
    """The conversation, message or answer is not there, or not any more."""

    status = 404


class Busy(PagewellError):
    """One answer of a conversation is written at a time."""

    status = 409


class Unusable(PagewellError):
    """What the person sent cannot be used: an empty message, an empty title."""

    status = 422
