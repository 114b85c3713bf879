"""Server-sent events that never fall silent, never end without a word, and stop when the client leaves."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import msgspec
from litestar import MediaType, Response
from litestar.types import ASGIApp, Receive, Scope, Send

from app.connection import disconnected
from app.errors import describe
from engine.errors import PagewellError

log = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
SILENCE_S = 5.0
"""Clients and proxies cut a stream that says nothing for long; Node's fetch does so after 300 s, proxies after 30 s."""

_encoder = msgspec.json.Encoder()


def data(value: Any) -> bytes:
    """One event with a JSON payload and no name."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


class EventStream(Response[bytes]):
    """A response whose body are the byte chunks of an asynchronous generator.

    `close` is called when the stream ends in whatever way, also when the client left before the first chunk.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        close: Callable[[], None],
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(b"", status_code=200, media_type=MediaType.TEXT)
        self._chunks = chunks
        self._close = close
        self._last_sent_s = 0.0
        self._request_id = (headers or {}).get("x-request-id", "")
        self._headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *((name.encode(), value.encode()) for name, value in (headers or {}).items()),
        ]

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIApp:
        return self._respond

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(chunk: bytes, *, more: bool = True) -> None:
            self._last_sent_s = time.monotonic()
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            async with anyio.create_task_group() as tasks, contextlib.aclosing(self._chunks):
                tasks.start_soon(self._leave, receive, tasks.cancel_scope)
                tasks.start_soon(self._keep_alive, write)
                try:
                    async for chunk in self._chunks:
                        await write(chunk)
                except Exception as error:
                    log.warning(
                        "The stream %s ends with an error: %s",
                        self._name(scope),
                        error,
                        exc_info=not isinstance(error, PagewellError),
                    )
                    await write(data(describe(error, details=scope["litestar_app"].debug).body))
                tasks.cancel_scope.cancel()
            await write(b"", more=False)
        finally:
            self._close()

    def _name(self, scope: Scope) -> str:
        return f"{scope['path']} {self._request_id}".strip()

    async def _leave(self, receive: Receive, scope: anyio.CancelScope) -> None:
        await disconnected(receive)
        scope.cancel()

    async def _keep_alive(self, write: Callable[[bytes], Any]) -> None:
        while True:
            quiet_s = time.monotonic() - self._last_sent_s
            if quiet_s >= SILENCE_S:
                await write(KEEP_ALIVE)
                quiet_s = 0.0
            await anyio.sleep(SILENCE_S - quiet_s)
