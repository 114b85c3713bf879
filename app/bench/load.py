"""The load client: some requests at a time against a server's /v1/chat/completions, each timed piece by piece."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from httpx_sse import aconnect_sse

from app.bench.prompts import conversation


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent."""

    model: str
    n_requests: int
    concurrency: int
    prompt_words: int
    """Of each request's own text; about as many tokens."""
    prefix_words: int
    """Of the system prompt that all share."""
    output_tokens: int
    seed: int = 0
    temperature: float = 0.0
    ignore_eos: bool = True
    """Ask for exactly output_tokens; servers that do not know the field may end earlier."""


@dataclass(slots=True)
class Answer:
    """One request as its client saw it. Times in seconds from when it was sent."""

    index: int
    sent_s: float
    """From the start of the whole load."""
    pieces_s: list[float] = field(default_factory=list)
    """When each piece with text came."""
    total_s: float = 0.0
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.pieces_s[0]

    @property
    def gaps_s(self) -> list[float]:
        """Between one piece and the next (inter-token latency)."""
        return [later - sooner for sooner, later in zip(self.pieces_s, self.pieces_s[1:], strict=False)]


async def run(client: httpx.AsyncClient, load: Load, on_answer: Callable[[Answer], None] = lambda _: None) -> list[Answer]:
    """Send the load; answers in the order of their index. A failed request is an Answer with an error, not an exception."""
    began = time.perf_counter()
    indices = iter(range(load.n_requests))
    answers: list[Answer] = []

    async def worker() -> None:
        for index in indices:
            answer = Answer(index, time.perf_counter() - began)
            await _ask(client, load, answer)
            answers.append(answer)
            on_answer(answer)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(load.concurrency, load.n_requests)):
            group.create_task(worker())
    return sorted(answers, key=lambda answer: answer.index)


async def _ask(client: httpx.AsyncClient, load: Load, answer: Answer) -> None:
    messages = conversation(answer.index, prompt_words=load.prompt_words, prefix_words=load.prefix_words, seed=load.seed)
    body: dict[str, Any] = {
        "model": load.model,
        "messages": messages,
        "max_tokens": load.output_tokens,
        "temperature": load.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if load.ignore_eos:
        body["ignore_eos"] = True
    began = time.perf_counter()
    try:
        async with aconnect_sse(client, "POST", "/v1/chat/completions", json=body) as source:
            if source.response.is_error:
                await source.response.aread()
                answer.error = f"{source.response.status_code}: {source.response.text[:200]}"
                return
            async for event in source.aiter_sse():
                if event.data == "[DONE]":
                    break
                _take(answer, event.json(), time.perf_counter() - began)
    except httpx.HTTPError as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.total_s = time.perf_counter() - began
    if answer.error is None and not answer.pieces_s:
        answer.error = "the answer had no text"


def _take(answer: Answer, chunk: dict[str, Any], now_s: float) -> None:
    if "error" in chunk:
        answer.error = chunk["error"]["message"]
        return
    for choice in chunk.get("choices", ()):
        delta = choice["delta"]
        if delta.get("content") or delta.get("reasoning_content"):
            answer.pieces_s.append(now_s)
    if usage := chunk.get("usage"):
        answer.n_prompt = usage["prompt_tokens"]
        answer.n_output = usage["completion_tokens"]
        answer.n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
