"""A stream whose model must be loaded first: it opens at once and keeps the connection alive meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from app.openai.job import Job
from app.sse import KEEP_ALIVE, EventStream


def waking(start: Callable[[], Awaitable[Job]], chunks: Callable[[Job], AsyncGenerator[bytes, None]]) -> EventStream:
    """The stream of the job that `start` loads the model for. A refusal comes as an event, since the headers are sent."""
    job: Job | None = None

    async def begin() -> AsyncGenerator[bytes, None]:
        nonlocal job
        yield KEEP_ALIVE
        job = await start()
        async with contextlib.aclosing(chunks(job)) as answer:
            async for chunk in answer:
                yield chunk

    def close() -> None:
        if job is not None:
            job.abort()

    return EventStream(begin(), close=close)
