"""A client that leaves: noticed at once, in every phase, streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

from app.errors import ClientGone

T = TypeVar("T")


async def disconnected(receive: Receive) -> None:
    """Return once the client has closed its connection. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled as soon as the client leaves (then ClientGone)."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone("The client closed its connection.")
        return task.result()
    finally:
        for pending in (task, watch):
            pending.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
