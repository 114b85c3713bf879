"""Job: one HTTP request's work in the engine, one stream of events for each of its prompts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from uuid import uuid4

from app.errors import GenerationFailed
from engine.async_engine import AsyncEngine, RequestStream
from engine.errors import InvalidRequest, PromptTooLong
from engine.outputs import RequestOutput
from engine.text.tokenizer import Tokenizer
from engine.types import Event, Finished, FinishReason, SamplingParams


@dataclass(slots=True)
class Job:
    """Submitted prompts and what their answers are called on the wire."""

    id: str
    model: str
    fingerprint: str
    tokenizer: Tokenizer
    prompts: list[list[int]]
    params: SamplingParams
    streams: list[RequestStream]
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.params.n

    def abort(self) -> None:
        """End whatever of this job still runs; nothing happens to what has ended."""
        for stream in self.streams:
            stream.abort()

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """(prompt's place, event) of all prompts as they come, until each had its last event.

        Raises GenerationFailed when the engine gave up on one of them.
        """
        if len(self.streams) == 1:
            async for event in self.streams[0]:
                yield 0, _checked(event)
            return
        merged: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

        async def pump(place: int, stream: RequestStream) -> None:
            async for event in stream:
                merged.put_nowait((place, event))

        pumps = [asyncio.create_task(pump(place, stream)) for place, stream in enumerate(self.streams)]
        n_live = len(pumps)
        try:
            while n_live:
                place, event = await merged.get()
                n_live -= isinstance(event, Finished)
                yield place, _checked(event)
        finally:
            for task in pumps:
                task.cancel()

    async def collect(self) -> list[RequestOutput]:
        """The whole answers, one for each prompt. Cancelling aborts."""
        outputs = [RequestOutput.empty(prompt, self.params.n) for prompt in self.prompts]
        try:
            async for place, event in self.events():
                outputs[place].add(event)
        finally:
            self.abort()
        return outputs


def _checked(event: Event) -> Event:
    if isinstance(event, Finished) and event.reason is FinishReason.ERROR:
        raise GenerationFailed(event.error or "The model could not compute this answer.")
    return event


def submit(
    engine: AsyncEngine,
    prompts: list[list[int]],
    params: SamplingParams,
    *,
    prefix: str,
    model: str,
    cache_salt: str = "",
    priority: int = 0,
    cap: int | None = None,
) -> Job:
    """Queue every prompt, or none. `cap` lowers the window for this job.

    Raises PromptTooLong, InvalidRequest, QueueFull, EngineDead.
    """
    job_id = f"{prefix}-{uuid4().hex}"
    fingerprint = f"fp_{engine.info.digest[:12]}"
    job = Job(job_id, model, fingerprint, engine.tokenizer, prompts, params, [])
    try:
        for prompt in prompts:
            capped = params if cap is None else _capped(params, len(prompt), min(cap, engine.info.max_model_len))
            stream = engine.submit(prompt, capped, request_id=job_id, cache_salt=cache_salt, priority=priority)
            job.streams.append(stream)
    except BaseException:
        job.abort()
        raise
    return job


def _capped(params: SamplingParams, n_prompt: int, window: int) -> SamplingParams:
    room = window - n_prompt
    if room < 1:
        raise PromptTooLong(n_prompt, window)
    if params.min_tokens > room:
        raise InvalidRequest("min_tokens", f"`min_tokens` is {params.min_tokens}, but `num_ctx` leaves room for {room}.")
    return replace(params, max_tokens=room if params.max_tokens is None else min(params.max_tokens, room))
