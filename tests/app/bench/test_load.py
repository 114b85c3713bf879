"""The load client against a small OpenAI-compatible server on this machine."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from app.bench import load as client
from app.bench import report
from app.bench.load import Load, Measure
from app.bench.prompts import conversation
from app.bench.wire import Endpoint
from engine.errors import PagewellError
from tests.app.bench.small_server import GAP_S, N_FIXED, N_PIECES, SmallServer, running


@pytest.fixture
async def server() -> AsyncIterator[tuple[SmallServer, Endpoint]]:
    async with running() as (small, url):
        yield small, Endpoint(url, "m")


LOAD = Load(n_requests=6, concurrency=3, prompt_words=20, prefix_words=30, output_tokens=N_PIECES)


async def test_every_request_is_sent_once_at_the_asked_concurrency_and_timed(server: tuple[SmallServer, Endpoint]) -> None:
    small, endpoint = server
    answers = await client.run(endpoint, LOAD)
    assert [a.index for a in answers] == list(range(6))
    assert small.most_at_once == 3
    assert all(body["max_tokens"] == N_PIECES and body["ignore_eos"] and body["stream"] for body in small.bodies)
    for answer in answers:
        assert answer.error is None
        assert (answer.n_cached, answer.n_output, len(answer.pieces_s)) == (60, 5, 5)
        assert answer.ttft_s >= GAP_S * 0.9
        assert sum(answer.gaps_s) >= (N_PIECES - 1) * GAP_S * 0.9
        assert answer.total_s >= answer.pieces_s[-1]
    figures = report.summarise(LOAD, answers)
    assert figures["cached_tokens"] == 360
    assert figures["output_tokens_per_s"] == pytest.approx(30 / figures["wall_s"])


async def test_all_at_once(server: tuple[SmallServer, Endpoint]) -> None:
    small, endpoint = server
    await client.run(endpoint, replace(LOAD, concurrency=6))
    assert small.most_at_once == 6


async def test_fields_that_a_server_may_refuse_can_be_left_out(server: tuple[SmallServer, Endpoint]) -> None:
    small, endpoint = server
    await client.run(endpoint, replace(LOAD, n_requests=1, ignore_eos=False))
    assert "ignore_eos" not in small.bodies[0]


async def test_failures_are_counted_and_named_not_timed(server: tuple[SmallServer, Endpoint]) -> None:
    small, endpoint = server
    small.fail_every = 3
    figures = report.summarise(LOAD, await client.run(endpoint, LOAD))
    assert (figures["n_requests"], figures["n_failed"], figures["output_tokens"]) == (6, 2, 20)
    assert figures["errors"] == ["503: busy"]
    assert "2 failed" in report.lines(figures)[0]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO = b'data: {"choices": [{"delta": {"content": "Hello"}}]}\n\n'


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (HEAD + HELLO + b"data: {not json\n\n", "no stream of a chat completion: JSON is malformed"),
        (HEAD + b"data: [1, 2]\n\n", "no stream of a chat completion: Expected `object`"),
        (HEAD + b'data: {"choices": [{"delta": {"content": 7}}]}\n\n', "no stream of a chat completion: Expected `str | null`"),
        (HEAD + HELLO + b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (HEAD + HELLO + b'data: {"error": "out of memory"}\n\n', "out of memory"),
        (HEAD + b'data: {"error": {}}\n\n', "an error without a message"),
        (HEAD + HELLO, "the answer broke off"),
        (HEAD + b"data: [DONE]\n\n", "the answer had no text"),
        (HEAD, "the answer broke off"),
        (CHUNKED + b"zz\r\nhello\r\n", "no stream of a chat completion: a chunk without a length"),
        (b"", "IncompleteReadError"),
        (b"220 mail.example ESMTP\r\n\r\n", "BadReply: no HTTP answer"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 30\r\n\r\nshort", "404: short"),
    ],
)
async def test_what_is_no_answer_is_an_error_that_says_so(server: tuple[SmallServer, Endpoint], raw: bytes, error: str) -> None:
    small, endpoint = server
    small.raw = raw
    (answer,) = await client.run(endpoint, replace(LOAD, n_requests=1))
    assert answer.error is not None and answer.error.startswith(error)


async def test_a_server_that_is_not_there_is_an_error_of_the_answer() -> None:
    (answer,) = await client.run(Endpoint("http://127.0.0.1:9", "m"), replace(LOAD, n_requests=1))
    assert answer.error is not None and answer.error.startswith("ConnectionRefusedError")
    with pytest.raises(PagewellError, match="is no address"):
        await client.run(Endpoint("127.0.0.1:9", "m"), LOAD)


async def test_pieces_without_a_count_count_as_tokens(server: tuple[SmallServer, Endpoint]) -> None:
    small, endpoint = server
    small.raw = HEAD + HELLO + HELLO + b'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}\n\n'
    (answer,) = await client.run(endpoint, replace(LOAD, n_requests=1))
    assert (answer.error, answer.n_output, answer.n_prompt) == (None, 2, 0)


async def test_an_answer_of_special_tokens_only_is_timed_by_its_end(server: tuple[SmallServer, Endpoint]) -> None:
    small, endpoint = server
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "length"}], "usage": {"completion_tokens": 1}}\n\n'
    small.raw = HEAD + b'data: {"choices": [{"delta": {"content": ""}}]}\n\n' + end
    (answer,) = await client.run(endpoint, replace(LOAD, n_requests=1))
    assert (answer.error, answer.n_output, len(answer.pieces_s)) == (None, 1, 1)


async def test_words_are_measured_in_the_servers_tokens(server: tuple[SmallServer, Endpoint]) -> None:
    small, endpoint = server
    measure = await client.measure(endpoint, seed=1)
    assert measure.tokens_per_word == 2
    n_words = len(conversation(0, prompt_words=measure.prompt_words(512), prefix_words=0, seed=1)[0]["content"].split())
    assert 2 * n_words + N_FIXED in (511, 512)
    small.raw = HEAD + HELLO + b"data: [DONE]\n\n"
    assert await client.measure(endpoint, seed=1) == Measure()
    small.raw = b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(PagewellError, match="does not answer: 500"):
        await client.measure(endpoint, seed=1)


def test_prompts_share_exactly_the_prefix() -> None:
    first, second = (conversation(i, prompt_words=50, prefix_words=40, seed=1) for i in (0, 1))
    assert first[0] == second[0] and first[0]["role"] == "system" and len(first[0]["content"].split()) == 40
    assert first[1] != second[1]
    assert conversation(0, prompt_words=50, prefix_words=40, seed=1) == first
    assert conversation(0, prompt_words=50, prefix_words=40, seed=2)[0] != first[0]
    assert [m["role"] for m in conversation(0, prompt_words=5, prefix_words=0, seed=1)] == ["user"]


def test_prompts_of_other_seeds_and_requests_part_within_a_block() -> None:
    prompts = [
        conversation(index, prompt_words=100, prefix_words=0, seed=f"{seed}")[0]["content"].split()
        for seed in range(30)
        for index in range(8)
    ]
    same = [
        sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
        for a, b in itertools.combinations(prompts, 2)
    ]
    assert max(same) < 16, "a block of 16 tokens would come from the cache"
    assert len({json.dumps(prompt) for prompt in prompts}) == len(prompts)


async def test_a_connection_that_says_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    monkeypatch.setattr("app.bench.wire.TIMEOUT_S", 0.05)
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listener:
        endpoint = Endpoint(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", "m")
        (answer,) = await client.run(endpoint, replace(LOAD, n_requests=1))
    assert answer.error is not None and answer.error.startswith("no end after")
