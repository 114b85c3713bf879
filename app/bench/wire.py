"""One POST over HTTP/1.1, whose body is kept as it came, with times, and read only when nothing is measured any more.

The client runs on the cores of the server that it measures: a library that parses each piece at once would take a tenth
of a small machine at a thousand tokens a second, and so slow down the faster server most.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from engine.errors import PagewellError

TIMEOUT_S = 1800.0
_READ_BYTES = 1 << 16
_END = b"\r\n0\r\n\r\n"
"""What a chunked body ends with, unless it has trailers."""


class BadReply(Exception):
    """What came is no HTTP answer, or none with events."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and the model to ask."""

    url: str
    """Without a trailing slash or /v1."""
    model: str = ""
    api_key: str | None = None

    def place(self) -> tuple[str, int, bool, str]:
        """(host, port, whether over TLS, path that precedes /v1). Raises PagewellError for what is no URL."""
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PagewellError(f"{self.url} is no address of a server.", "It should look like http://127.0.0.1:8000.")
        secure = parts.scheme == "https"
        return parts.hostname, port or (443 if secure else 80), secure, parts.path.rstrip("/")


@dataclass(slots=True)
class Reply:
    """An answer as it came over the wire. Times in seconds since the request was sent."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    reads: list[tuple[float, bytes]] = field(default_factory=list)
    """Pieces of the body as the socket gave them, still in chunks where the transfer is chunked."""
    total_s: float = 0.0
    error: str | None = None
    """What went wrong with the connection."""

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    def payloads(self) -> Iterator[tuple[float, bytes]]:
        """The body without the framing of its transfer. Raises BadReply."""
        if not self.is_chunked:
            yield from self.reads
            return
        buffer = b""
        for now_s, data in self.reads:
            buffer += data
            while (line := buffer.find(b"\r\n")) >= 0:
                try:
                    size = int(buffer[:line].split(b";")[0], 16)
                except ValueError as error:
                    raise BadReply(f"a chunk without a length: {buffer[:40]!r}") from error
                if size == 0:
                    return
                if len(buffer) < line + 2 + size + 2:
                    break
                yield now_s, buffer[line + 2 : line + 2 + size]
                buffer = buffer[line + 2 + size + 2 :]

    def events(self) -> Iterator[tuple[float, str]]:
        """(when it was whole, data) of each server-sent event. Raises BadReply."""
        buffer = b""
        lines: list[str] = []
        for now_s, payload in self.payloads():
            buffer += payload
            *whole, buffer = buffer.split(b"\n")
            for raw in whole:
                line = raw.rstrip(b"\r").decode(errors="replace")
                if line.startswith("data:"):
                    lines.append(line[5:].removeprefix(" "))
                elif not line and lines:
                    yield now_s, "\n".join(lines)
                    lines = []

    def text(self) -> str:
        """The whole body. Raises BadReply."""
        return b"".join(data for _, data in self.payloads()).decode(errors="replace")


async def post(endpoint: Endpoint, path: str, body: dict[str, Any]) -> Reply:
    """Send and take in the whole answer; a connection that fails is a Reply with an error. Raises PagewellError for a bad URL."""
    host, port, secure, base = endpoint.place()
    request = _request(endpoint, host, port, base + path, body)
    reply = Reply()
    began = time.perf_counter()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            context = ssl.create_default_context() if secure else None
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                began = time.perf_counter()
                writer.write(request)
                await _head(reader, reply)
                await _body(reader, reply, began)
            finally:
                writer.close()
    except TimeoutError:
        reply.error = f"no end after {TIMEOUT_S:.0f} s"
    except (OSError, EOFError, asyncio.LimitOverrunError, BadReply) as error:
        reply.error = f"{type(error).__name__}: {error}"
    reply.total_s = reply.reads[-1][0] if reply.reads else time.perf_counter() - began
    return reply


def _request(endpoint: Endpoint, host: str, port: int, path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    name = f"[{host}]" if ":" in host else host
    lines = [f"POST {path} HTTP/1.1", f"Host: {name}:{port}", "Connection: close", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(content)}", "Accept: text/event-stream, application/json"]
    lines += [f"Authorization: Bearer {endpoint.api_key}"] if endpoint.api_key else []
    return "\r\n".join([*lines, "", ""]).encode() + content


async def _head(reader: asyncio.StreamReader, reply: Reply) -> None:
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    parts = status.split(" ", 2)
    if not parts[0].startswith("HTTP/1.") or len(parts) < 2 or not parts[1].isdigit():
        raise BadReply(f"no HTTP answer: {status[:60]!r}")
    reply.status = int(parts[1])
    for line in lines:
        name, _, value = line.partition(":")
        reply.headers[name.strip().lower()] = value.strip()


async def _body(reader: asyncio.StreamReader, reply: Reply, began: float) -> None:
    length = reply.headers.get("content-length", "")
    left = int(length) if length.isdigit() and not reply.is_chunked else None
    tail = b""
    while (left is None or left > 0) and (data := await reader.read(_READ_BYTES)):
        reply.reads.append((time.perf_counter() - began, data))
        left = left if left is None else left - len(data)
        tail = (tail + data)[-len(_END) :]
        if reply.is_chunked and tail == _END:
            break
