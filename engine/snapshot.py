"""Counters of the engine, and the snapshot of everything a dashboard shows, taken between two steps."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from engine.kv.manager import KVManager
from engine.kv.memory import GroupMemory
from engine.kv.tiers.connector import Holdings
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
    cached_host_tokens: int = 0
    cached_disk_tokens: int = 0
    to_host_bytes: int = 0
    from_host_bytes: int = 0
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
        n_blocks=sum(len(table) - table.count(-1) for table in seq.tables),
        age_s=now - seq.request.arrival_s,
        ttft_s=seq.first_token_s - seq.request.arrival_s if seq.first_token_s is not None else None,
        tok_s=(seq.n_output - 1) / since_first if seq.n_output > 1 and since_first > 0 else 0.0,
    )


def _block_states(memory: GroupMemory, kv: KVManager) -> bytes:
    """One BlockState for each block of a group."""
    states = bytearray(len(memory.pool.blocks))
    n_pins = Counter(block_id for table in kv.pins.tables(memory) for block_id in table)
    for block in memory.pool.blocks:
        n_tables = block.refs - n_pins[block.id] if n_pins else block.refs
        if n_tables > 1:
            states[block.id] = BlockState.SHARED
        elif n_tables == 1:
            states[block.id] = BlockState.USED
        elif block.refs:
            states[block.id] = BlockState.PINNED
        elif block.key is not None:
            states[block.id] = BlockState.CACHED
    return bytes(states)


def _n_wasted(running: Iterable[Sequence], g: int, size: int) -> int:
    """Tokens for which a group's blocks in tables have room, and that no answer has; of a block that several hold, room that none
    of them fills."""
    empty: dict[int, int] = {}
    for seq in running:
        n_full, rest = divmod(len(seq.token_ids), size)
        for i, block_id in enumerate(seq.tables[g][n_full:]):
            empty[block_id] = min(empty.get(block_id, size), size - (rest if i == 0 else 0))
    return sum(empty.values())


def snapshot(scheduler: Scheduler, counters: Counters, *, last_step_s: float, last_step_tokens: int) -> EngineStats:
    """The engine as it stands now; call on the engine thread, between two steps."""
    now = time.monotonic()
    kv = scheduler.kv
    states, owners = bytearray(), []
    n_room_tokens = n_wasted_tokens = 0
    for g, memory in enumerate(kv.memories):
        of_blocks = _block_states(memory, kv)
        states += of_blocks
        if not memory.group.recurrent:
            n_used = of_blocks.count(BlockState.USED) + of_blocks.count(BlockState.SHARED)
            n_room_tokens += n_used * kv.block_size
            n_wasted_tokens += _n_wasted(scheduler.running, g, kv.block_size)
        of_group = [-1] * len(memory.pool.blocks)
        for seq in scheduler.running:
            for block_id in seq.tables[g]:
                if block_id >= 0:
                    of_group[block_id] = seq.request.uid
        owners += of_group
    n_shared, n_cached, n_pinned = (states.count(s) for s in (BlockState.SHARED, BlockState.CACHED, BlockState.PINNED))
    n_used = n_shared + states.count(BlockState.USED)
    held = kv.exchange.holdings() if kv.exchange else Holdings()
    return EngineStats(
        time_s=now,
        n_running=len(scheduler.running),
        n_waiting=len(scheduler.waiting),
        n_blocks=len(states),
        n_free=states.count(BlockState.FREE),
        n_cached=n_cached,
        n_shared=n_shared,
        n_used=n_used,
        n_room_tokens=n_room_tokens,
        n_wasted_tokens=n_wasted_tokens,
        n_pinned=n_pinned,
        n_host_blocks=sum(memory.host.n_slots for memory in kv.memories),
        n_host_used=sum(memory.host.n_used for memory in kv.memories),
        n_disk_blocks=held.n_blocks,
        disk_bytes=held.n_bytes,
        disk_most_bytes=held.most_bytes,
        block_size=kv.block_size,
        counters=EngineCounters(
            n_preemptions=scheduler.n_preemptions,
            n_swaps=scheduler.n_swaps,
            n_demoted=sum(memory.n_demoted for memory in kv.memories),
            n_promoted=sum(memory.n_promoted for memory in kv.memories),
            n_stored=kv.exchange.n_stored if kv.exchange else 0,
            n_fetched=kv.exchange.n_fetched if kv.exchange else 0,
            n_evictions=sum(memory.pool.n_evicted for memory in kv.memories),
            n_host_evictions=sum(memory.host.n_evicted for memory in kv.memories),
            to_disk_bytes=held.written_bytes,
            from_disk_bytes=held.read_bytes,
            n_damaged=held.n_damaged,
            **dataclasses.asdict(counters),
        ),
        last_step_s=last_step_s,
        last_step_tokens=last_step_tokens,
        requests=[_request_stats(seq, now) for seq in (*scheduler.running, *scheduler.waiting)],
        blocks=bytes(states),
        owners=owners,
    )
