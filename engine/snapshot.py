"""Counters of the engine, and the snapshot of everything a dashboard shows, taken between two steps."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
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
    pool, exchange = scheduler.kv.pool, scheduler.kv.exchange
    states = bytearray(len(pool.blocks))
    n_pins = dict(Counter(block.id for pin in scheduler.kv.pins.values() for block in pin))
    for block in pool.blocks:
        n_tables = block.refs - n_pins.get(block.id, 0)
        if n_tables > 1:
            states[block.id] = BlockState.SHARED
        elif n_tables == 1:
            states[block.id] = BlockState.USED
        elif block.refs:
            states[block.id] = BlockState.PINNED
        elif block.key is not None:
            states[block.id] = BlockState.CACHED
    owners = [-1] * len(pool.blocks)
    for seq in scheduler.running:
        for block_id in seq.block_ids:
            owners[block_id] = seq.request.uid
    n_shared, n_cached = states.count(BlockState.SHARED), states.count(BlockState.CACHED)
    n_used = n_shared + states.count(BlockState.USED)
    n_pinned = states.count(BlockState.PINNED)
    size = scheduler.kv.block_size
    return EngineStats(
        time_s=now,
        n_running=len(scheduler.running),
        n_waiting=len(scheduler.waiting),
        n_blocks=len(pool.blocks),
        n_free=len(pool.blocks) - n_used - n_cached - n_pinned,
        n_cached=n_cached,
        n_shared=n_shared,
        n_used=n_used,
        n_wasted_tokens=sum(max(0, len(seq.block_ids) * size - len(seq.token_ids)) for seq in scheduler.running),
        n_pinned=n_pinned,
        n_host_blocks=scheduler.kv.host.n_slots,
        n_host_used=scheduler.kv.host.n_used,
        block_size=scheduler.kv.block_size,
        counters=EngineCounters(
            n_preemptions=scheduler.n_preemptions,
            n_swaps=scheduler.n_swaps,
            n_demoted=scheduler.kv.n_demoted,
            n_promoted=scheduler.kv.n_promoted,
            n_stored=exchange.n_stored if exchange else 0,
            n_fetched=exchange.n_fetched if exchange else 0,
            n_evictions=pool.n_evicted,
            **dataclasses.asdict(counters),
        ),
        last_step_s=last_step_s,
        last_step_tokens=last_step_tokens,
        requests=[_request_stats(seq, now) for seq in (*scheduler.running, *scheduler.waiting)],
        blocks=bytes(states),
        owners=owners,
    )
