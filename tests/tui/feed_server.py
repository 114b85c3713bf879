"""A server on 127.0.0.1 that speaks the feed's HTTP and sends exactly what a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FeedServer:
    """Sends `first` to each new listener and `send()` to all; answers and records everything else."""

    def __init__(self, first: bytes = b"") -> None:
        self.first = first
        self.port = 0
        self.status = 200
        self.content_type = "text/event-stream"
        self.keep_alive_s = 0.5
        """A comment goes to each listener so often, as a real feed is never silent."""
        self.snapshot = b"{}"
        self.abort_answer = (202, b'{"uid":1,"status":"accepted"}')
        self.requests: list[str] = []
        self.keys: list[str] = []
        self._listeners: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def n_listeners(self) -> int:
        return len(self._listeners)

    async def start(self) -> None:
        """Listen, on the port of the time before if there was one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections and cut the feeds."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in tuple(self._listeners):
            writer.close()
        self._listeners.clear()
        await asyncio.sleep(0)

    async def send(self, event: bytes) -> None:
        for writer in tuple(self._listeners):
            writer.write(event)
            await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *fields = head.split("\r\n")
                method, path, _ = line.split()
                headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields if field)}
                await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(f"{method} {path}")
                self.keys.append(headers.get("authorization", ""))
                if path == "/api/stats/stream":
                    await self._stream(reader, writer)
                    return
                status, body = self.abort_answer if method == "POST" else (self.status, self.snapshot)
                writer.write(_head(status, f"application/json\r\ncontent-length: {len(body)}") + body)
                await writer.drain()
        writer.close()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(_head(self.status, f"{self.content_type}\r\nconnection: close") + self.first)
        await writer.drain()
        if self.status == 200:
            self._listeners.add(writer)
            while not reader.at_eof():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), self.keep_alive_s)
                writer.write(b":\n\n")
            self._listeners.discard(writer)
        writer.close()


def _head(status: int, content_type: str) -> bytes:
    return f"HTTP/1.1 {status} Status\r\ncontent-type: {content_type}\r\n\r\n".encode()


@asynccontextmanager
async def serving(first: bytes = b"") -> AsyncIterator[FeedServer]:
    server = FeedServer(first)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
