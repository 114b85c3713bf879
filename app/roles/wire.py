"""What a decode server and a prefill server say to each other: JSON on a Unix socket, each message after its length (4 bytes,
big-endian). One connection is one prompt: an Ask, then Replies until the last one. Who closes it has lost interest, or has died.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

MOST_BYTES = 64 << 20
HEARTBEAT_S = 1.0
"""How often a prefill server says that it is at work."""

T = TypeVar("T")


class Ask(msgspec.Struct, frozen=True):
    """Compute a prompt and hand its KV over."""

    token_ids: list[Annotated[int, Meta(ge=0, le=2**31 - 1)]]
    n_missing: Annotated[int, Meta(ge=1)]
    """Tokens at its end whose KV the decode server has not."""
    cache_salt: str
    priority: int


class Reply(msgspec.Struct, frozen=True):
    """computing: at work. done: all of it was handed over. declined: it has less of the prompt than who asks, and would take
    longer. failed: `why` says it.
    """

    state: Literal["computing", "done", "declined", "failed"]
    why: str = ""


async def send(writer: asyncio.StreamWriter, message: Ask | Reply) -> None:
    """Raises OSError when the other side is gone."""
    raw = msgspec.json.encode(message)
    writer.write(len(raw).to_bytes(4, "big") + raw)
    await writer.drain()


async def receive(reader: asyncio.StreamReader, kind: type[T]) -> T:
    """The next message. Raises OSError or EOFError when the other side is gone, ValueError for what is no such message."""
    n_bytes = int.from_bytes(await reader.readexactly(4), "big")
    if n_bytes > MOST_BYTES:
        raise ValueError(f"a message of {n_bytes} bytes")
    return msgspec.json.decode(await reader.readexactly(n_bytes), type=kind)
