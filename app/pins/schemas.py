"""Bodies of /api/pins."""

from __future__ import annotations

import msgspec

from app.openai.schemas import TokenizeRequest


class PinRequest(TokenizeRequest, kw_only=True):
    """A text or messages, as for /tokenize. Of messages the answer's beginning is no part of the prefix, unless asked for."""

    cache_salt: str | None = None
    """That of the requests which are to find it."""


class PinAnswer(msgspec.Struct, frozen=True):
    """A pinned prefix and its price."""

    id: int
    tokens: int
    """In whole blocks: what is left of the prefix behind them is not kept."""
    blocks: int
    bytes: int
    model: str
    """In whose KV cache it lies."""


class PinList(msgspec.Struct, frozen=True):
    pins: list[PinAnswer]
