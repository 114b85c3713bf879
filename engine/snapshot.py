"""Counters of the engine, and the snapshot of everything a dashboard shows, taken between two steps."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from engine.scheduler import Scheduler
from engine.stats import BlockState, EngineCounters, EngineStats, RequestStats
from engine.types import FinishReason, Sequence


@dataclass(slots=True)
class Counters:
    """Totals that the core raises as it goes; see EngineCounters for their meaning."""

    n_steps: int = 0
    n_requests: int = 0
    n_finished: int = 0
    n_aborted: int = 0
    n_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    prefix_queries: int = 0
    busy_s: float = 0.0

    def count_end(self, reason: FinishReason) -> None:
        if reason is FinishReason.ABORT:
            self.n_aborted += 1
        elif reason is FinishReason.ERROR:
            self.n_failed += 1
        else:
            self.n_finished += 1


def _request_stats(seq: Sequence, now: float) -> RequestStats:
    since_first = now - seq.first_token_s if seq.first_token_s is not None else 0.0
    return RequestStats(
        uid=seq.request.uid,
        request_id=seq.request.request_id,
        index=seq.index,
        status=seq.status.value,
        n_prompt=seq.n_prompt,
        n_cached=seq.n_cached,
        n_computed=seq.n_computed,
        n_output=seq.n_output,
        n_blocks=len(seq.block_ids),
        age_s=now - seq.request.arrival_s,
        ttft_s=seq.first_token_s - seq.request.arrival_s if seq.first_token_s is not None else None,
        tok_s=(seq.n_output - 1) / since_first if seq.n_output > 1 and since_first > 0 else 0.0,
    )


def snapshot(scheduler: Scheduler, counters: Counters, *, last_step_s: float, last_step_tokens: int) -> EngineStats:
    """The engine as it stands now; call on the engine thread, between two steps."""
    now = time.monotonic()
    pool = scheduler.kv.pool
    states = bytearray(len(pool.blocks))
    for block in pool.blocks:
        if block.refs > 1:
            states[block.id] = BlockState.SHARED
        elif block.refs == 1:
            states[block.id] = BlockState.USED
        elif block.key is not None:
            states[block.id] = BlockState.CACHED
    owners = [-1] * len(pool.blocks)
    for seq in scheduler.running:
        for block_id in seq.block_ids:
            owners[block_id] = seq.request.uid
    n_shared, n_cached = states.count(BlockState.SHARED), states.count(BlockState.CACHED)
    n_used = n_shared + states.count(BlockState.USED)
    return EngineStats(
        time_s=now,
        n_running=len(scheduler.running),
        n_waiting=len(scheduler.waiting),
        n_blocks=len(pool.blocks),
        n_free=len(pool.blocks) - n_used - n_cached,
        n_cached=n_cached,
        n_shared=n_shared,
        n_used=n_used,
        block_size=scheduler.kv.block_size,
        counters=EngineCounters(
            n_preemptions=scheduler.n_preemptions, n_evictions=pool.n_evicted, **dataclasses.asdict(counters)
        ),
        last_step_s=last_step_s,
        last_step_tokens=last_step_tokens,
        requests=[_request_stats(seq, now) for seq in (*scheduler.running, *scheduler.waiting)],
        blocks=bytes(states),
        owners=owners,
    )
