"""The load client: some requests at a time against a server's /v1/chat/completions, each timed piece by piece."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from app.bench.answer import Answer
from app.bench.prompts import conversation
from app.bench.wire import Endpoint, Reply, post
from engine.errors import PagewellError

_LEAST_WORDS = 16
_PROBES = (16, 272)
"""Words of the two prompts that measure how many tokens a word has."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent."""

    n_requests: int
    concurrency: int
    """Requests at a time: the next is sent when one ends. As many as n_requests: all at once."""
    prompt_words: int
    """Of each request's own text."""
    prefix_words: int
    """Of the system prompt that all share."""
    output_tokens: int
    seed: int | str = 0
    temperature: float = 0.0
    ignore_eos: bool = True
    """Ask for exactly output_tokens; servers that do not know the field may end earlier."""
    first_index: int = 0
    """Of the first request; another index has another text."""
    prefix_seed: int | str | None = None
    """Of the system prompt, where it is not the seed."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How a server's model counts our prompts: a prompt of w words has tokens_per_word * w + n_fixed tokens."""

    tokens_per_word: float = 1.2
    n_fixed: float = 30.0
    """Tokens of the chat template, and of the sentence that every prompt ends with."""

    def words(self, n_tokens: int) -> int:
        """Words of a text that has about n_tokens."""
        return round(n_tokens / self.tokens_per_word)

    def prompt_words(self, n_tokens: int) -> int:
        """Words of the own text in a prompt that has about n_tokens in all; enough for it to differ from all others."""
        return max(_LEAST_WORDS, self.words(max(0, round(n_tokens - self.n_fixed))))


async def run(endpoint: Endpoint, load: Load, on_answer: Callable[[], None] = lambda: None) -> list[Answer]:
    """Send the load; answers in the order of their index. A failed request is an Answer with an error, not an exception."""
    bodies = [_body(endpoint, load, index) for index in range(load.n_requests)]
    began = time.perf_counter()
    indices = iter(range(load.n_requests))
    replies: list[tuple[Answer, Reply]] = []

    async def worker() -> None:
        for index in indices:
            answer = Answer(index, time.perf_counter() - began)
            replies.append((answer, await post(endpoint, "/v1/chat/completions", bodies[index])))
            on_answer()

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(load.concurrency, load.n_requests)):
                group.create_task(worker())
    except* PagewellError as errors:
        raise errors.exceptions[0] from None
    return sorted((answer.read(reply) for answer, reply in replies), key=lambda answer: answer.index)


async def measure(endpoint: Endpoint, seed: int | str, *, ignore_eos: bool = True) -> Measure:
    """Two short requests, which also warm the server up. PagewellError when it answers none; a guess where it counts nothing."""
    counts = []
    for n_words in _PROBES:
        load = Load(1, 1, n_words, 0, output_tokens=1, seed=f"{seed}/measure", ignore_eos=ignore_eos)
        (answer,) = await run(endpoint, load)
        if answer.error is not None:
            raise PagewellError(f"The server at {endpoint.url} does not answer: {answer.error}", "Look at its own log.")
        counts.append(answer.n_prompt)
    if not counts[0] < counts[1]:
        return Measure()
    rate = (counts[1] - counts[0]) / (_PROBES[1] - _PROBES[0])
    return Measure(rate, counts[0] - rate * _PROBES[0])


async def warm_up(endpoint: Endpoint, load: Load, n_requests: int) -> None:
    """Requests like those of the load with other prompts, one at a time; what comes of them is nobody's business."""
    await run(endpoint, replace(load, n_requests=n_requests, concurrency=1, seed=f"{load.seed}/warm-up"))


def _body(endpoint: Endpoint, load: Load, index: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": endpoint.model,
        "messages": conversation(
            load.first_index + index,
            prompt_words=load.prompt_words,
            prefix_words=load.prefix_words,
            seed=load.seed,
            prefix_seed=load.prefix_seed,
        ),
        "max_tokens": load.output_tokens,
        "temperature": load.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return body | ({"ignore_eos": True} if load.ignore_eos else {})
