"""Prompts that one process computes for another one, as either side's engine sees them: what is missing, and handing it over."""

from __future__ import annotations

import asyncio
from collections import deque

from engine.async_engine import AsyncEngine, RequestStream
from engine.core import EngineCore
from engine.errors import PagewellError
from engine.group import RequestGroup
from engine.kv.match import needed
from engine.types import Finished, FinishReason, Request, SamplingParams, Sequence

ADVANCE_S = 0.05
"""How often blocks that were computed meanwhile are handed over."""
SETTLE_S = 0.005


class NotComputed(PagewellError):
    """The engine ended the request that was to compute a prompt."""


def _sequence(core: EngineCore, request: Request) -> Sequence:
    """What the request would wait as; it is never scheduled."""
    return RequestGroup(request, core.tokenizer, seed=0, max_model_len=core.max_model_len).first


async def n_missing(engine: AsyncEngine, request: Request) -> int:
    """Tokens of a prompt that this engine would have to compute, were it queued now. Raises EngineDead."""

    def look(core: EngineCore) -> int:
        seq = _sequence(core, request)
        return seq.n_prompt - core.kv.n_findable(seq)

    return await engine.ask(look)


class _Blocks:
    """The blocks of a prompt, given to the connector as they become known. Belongs to the engine thread."""

    def __init__(self, core: EngineCore, request: Request, first_token: int) -> None:
        self._core = core
        size = core.kv.block_size
        n_useful = (len(request.prompt_token_ids) - 1) // size  # who takes them computes the last token
        keys, first = core.kv.keys(_sequence(core, request)), first_token // size
        self._left = [
            deque(keys[i] for i in needed(group, n_useful, size) if i >= first or group.window or group.recurrent)
            for group in core.kv.groups
        ]

    def advance(self) -> int:
        """Hand over what is known since the last time; returns the number to wait for in `Exchange.n_settled`."""
        exchange = self._core.exchange
        assert exchange is not None, "a role has a connector"
        names = []
        for g, (memory, left) in enumerate(zip(self._core.kv.memories, self._left, strict=True)):
            while left and memory.find(0, left[0]) is not None:
                names.append((g, left.popleft()))
        return exchange.hand_over(names)


async def hand_over(engine: AsyncEngine, request: Request, first_token: int) -> None:
    """Compute a prompt, and give its blocks from first_token on to the connector as they are done; returns once it has read them.

    Cancelled, it computes no more; what was handed over stays. Raises NotComputed, and what `submit` raises.
    """
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    stream = engine.submit(
        request.prompt_token_ids,
        params,
        request_id=request.request_id,
        cache_salt=request.cache_salt,
        priority=request.priority,
    )
    computing = asyncio.create_task(_end(stream))
    try:
        blocks = await engine.ask(lambda core: _Blocks(core, request, first_token))
        ticket, is_last = 0, False
        while not is_last:
            await asyncio.wait({computing}, timeout=ADVANCE_S)
            is_last = computing.done()
            ticket = await engine.ask(lambda _: blocks.advance())
        await computing
        while await engine.ask(lambda core: core.exchange.n_settled) < ticket:
            await asyncio.sleep(SETTLE_S)
    finally:
        computing.cancel()
        await stream.aclose()


async def _end(stream: RequestStream) -> None:
    async for event in stream:
        if isinstance(event, Finished) and event.reason is not FinishReason.STOP:
            raise NotComputed(event.error or "The request that was to compute the prompt was ended.")
