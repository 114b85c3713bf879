"""The load client against a small OpenAI-compatible server on this machine, and the arithmetic of its report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from app.bench import load as client
from app.bench import report
from app.bench.load import Answer, Load
from app.bench.prompts import conversation
from app.commands.answering import client_of

N_PIECES = 5
GAP_S = 0.02


class SmallServer:
    """Streams N_PIECES pieces, GAP_S apart, to each POST; breaks every third request if told to."""

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.n_now = 0
        self.most_at_once = 0
        self.fail_every: int | None = None

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        self.bodies.append(json.loads(await reader.readexactly(length)))
        self.n_now += 1
        self.most_at_once = max(self.most_at_once, self.n_now)
        if self.fail_every and len(self.bodies) % self.fail_every == 0:
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbusy")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            for index in range(N_PIECES):
                await asyncio.sleep(GAP_S)
                self._send(writer, {"choices": [{"index": 0, "delta": {"content": f"w{index} "}}]})
                await writer.drain()
            usage = {"prompt_tokens": 100, "completion_tokens": N_PIECES, "prompt_tokens_details": {"cached_tokens": 60}}
            self._send(writer, {"choices": [], "usage": usage})
            writer.write(b"data: [DONE]\n\n")
        self.n_now -= 1
        await writer.drain()
        writer.close()

    @staticmethod
    def _send(writer: asyncio.StreamWriter, chunk: dict) -> None:
        writer.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@pytest.fixture
async def server() -> AsyncIterator[tuple[SmallServer, str]]:
    small = SmallServer()
    async with await asyncio.start_server(small.answer, "127.0.0.1", 0) as listener:
        yield small, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


LOAD = Load("m", n_requests=6, concurrency=3, prompt_words=20, prefix_words=30, output_tokens=N_PIECES)


async def test_every_request_is_sent_once_at_the_asked_concurrency_and_timed(server: tuple[SmallServer, str]) -> None:
    small, url = server
    async with client_of(url, None) as http:
        answers = await client.run(http, LOAD)
    assert [a.index for a in answers] == list(range(6))
    assert small.most_at_once == 3
    assert all(body["max_tokens"] == N_PIECES and body["ignore_eos"] and body["stream"] for body in small.bodies)
    for answer in answers:
        assert answer.error is None
        assert (answer.n_prompt, answer.n_cached, answer.n_output, len(answer.pieces_s)) == (100, 60, 5, 5)
        assert answer.ttft_s >= GAP_S * 0.9
        assert sum(answer.gaps_s) >= (N_PIECES - 1) * GAP_S * 0.9
    figures = report.summarise(LOAD, answers)
    assert figures["cached_tokens"] == 360
    assert figures["output_tokens_per_s"] == pytest.approx(30 / figures["wall_s"])


async def test_failures_are_counted_and_named_not_timed(server: tuple[SmallServer, str]) -> None:
    small, url = server
    small.fail_every = 3
    async with client_of(url, None) as http:
        answers = await client.run(http, LOAD)
    figures = report.summarise(LOAD, answers)
    assert (figures["n_requests"], figures["n_failed"], figures["output_tokens"]) == (6, 2, 20)
    assert figures["errors"] == ["503: busy"]
    assert "2 failed" in report.lines(figures)[0]


def test_prompts_share_exactly_the_prefix() -> None:
    first, second = (conversation(i, prompt_words=50, prefix_words=40, seed=1) for i in (0, 1))
    assert first[0] == second[0] and first[0]["role"] == "system" and len(first[0]["content"].split()) == 40
    assert first[1] != second[1]
    assert conversation(0, prompt_words=50, prefix_words=40, seed=1) == first
    assert conversation(0, prompt_words=50, prefix_words=40, seed=2)[0] != first[0]
    assert [m["role"] for m in conversation(0, prompt_words=5, prefix_words=0, seed=1)] == ["user"]


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(v) for v in range(1, 101)]
    assert [report.percentile(values, share) for share in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert report.percentile([7.0], 50) == report.percentile([7.0], 99) == 7.0
    assert report.percentile([3.0, 1.0, 2.0], 50) == 2.0


def test_a_report_of_nothing_but_failures() -> None:
    figures = report.summarise(LOAD, [Answer(0, 0.0, total_s=1.0, error="x")])
    assert figures["n_failed"] == 1 and "ttft_s" not in figures
    assert report.lines(figures)[1].strip() == "x"
