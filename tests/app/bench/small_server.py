"""A small OpenAI-compatible server on this machine whose behaviour a test sets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

N_PIECES = 5
GAP_S = 0.02
N_FIXED = 11


class SmallServer:
    """Streams n_pieces pieces, or as many as are asked for, GAP_S apart, to each POST; breaks every third request if told to.

    Its model has two tokens for a word and N_FIXED for the rest of a prompt.
    """

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.n_now = 0
        self.most_at_once = 0
        self.fail_every: int | None = None
        self.n_pieces: int | None = N_PIECES
        self.raw: bytes | None = None
        """Sent to whatever is asked, instead of an answer."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            body = b'{"data": [{"id": "small"}]}'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
            await self._close(writer)
            return
        (length,) = (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        self.bodies.append(json.loads(await reader.readexactly(length)))
        self.n_now += 1
        self.most_at_once = max(self.most_at_once, self.n_now)
        if self.raw is not None:
            writer.write(self.raw)
        elif self.fail_every and len(self.bodies) % self.fail_every == 0:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            n_pieces = self.n_pieces or self.bodies[-1]["max_tokens"]
            for index in range(n_pieces):
                await asyncio.sleep(GAP_S)
                self._send(writer, {"choices": [{"index": 0, "delta": {"content": f"w{index} "}}]})
                await writer.drain()
            n_words = sum(len(message["content"].split()) for message in self.bodies[-1]["messages"])
            usage = {"prompt_tokens": 2 * n_words + N_FIXED, "completion_tokens": n_pieces}
            self._send(writer, {"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": 60}}})
            writer.write(b"data: [DONE]\n\n")
        self.n_now -= 1
        await self._close(writer)

    def _send(self, writer: asyncio.StreamWriter, chunk: dict) -> None:
        writer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    @staticmethod
    async def _close(writer: asyncio.StreamWriter) -> None:
        await writer.drain()
        writer.close()


@asynccontextmanager
async def running() -> AsyncIterator[tuple[SmallServer, str]]:
    """(the server, its URL)."""
    small = SmallServer()
    async with await asyncio.start_server(small.answer, "127.0.0.1", 0) as listener:
        yield small, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
