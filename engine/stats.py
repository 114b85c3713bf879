"""What the engine says about itself at one instant: totals, one row for each answer, one state for each KV block.

Frozen values that the engine thread builds between two steps and hands over; nothing in them changes afterwards.
Clocks: `time_s` is time.monotonic() of this process; everything else in *_s is a duration.
"""

from __future__ import annotations

import enum

import msgspec


class BlockState(enum.IntEnum):
    """State code of a KV block in `EngineStats.blocks`."""

    FREE = 0
    """Holds nothing worth keeping."""
    USED = 1
    """In one block table."""
    SHARED = 2
    """In several block tables at once."""
    CACHED = 3
    """In no block table, but hashed: a prompt that begins alike finds it. Evictable."""
    PINNED = 4
    """In no block table, hashed, and not evictable."""


class EngineCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since the model was loaded; they only rise."""

    n_steps: int = 0
    n_preemptions: int = 0
    n_swaps: int = 0
    """Preemptions that kept what was computed, to be moved to host memory; the others compute it again."""
    n_demoted: int = 0
    """Blocks copied to host memory as they left the cache."""
    n_promoted: int = 0
    """Blocks copied back from there."""
    n_stored: int = 0
    """Blocks given to the connector: a disk, or another process."""
    n_fetched: int = 0
    """Blocks that it brought."""
    n_requests: int = 0
    """Requests accepted into the queue."""
    n_finished: int = 0
    """Requests that ended on their own, by a stop or by length."""
    n_aborted: int = 0
    n_failed: int = 0
    prompt_tokens: int = 0
    """Prompt tokens computed, chunk by chunk; those found in the cache are not among them."""
    cached_tokens: int = 0
    """Prompt tokens that admission found in the prefix cache, wherever they lay."""
    cached_host_tokens: int = 0
    """Of those: that had to come back from host memory."""
    cached_disk_tokens: int = 0
    """Of those: that the connector brought."""
    output_tokens: int = 0
    """Tokens accepted into answers."""
    prefix_queries: int = 0
    """Prompt tokens that admission looked up in the prefix cache; cached_tokens / prefix_queries is the hit rate."""
    busy_s: float = 0.0
    """Seconds spent in steps; its rise over a span is the device's utilisation."""
    n_evictions: int = 0
    """Cached blocks that lost their content to a new owner."""
    n_host_evictions: int = 0
    """Copies in host memory that made room."""
    to_host_bytes: int = 0
    """Copied to host memory, for what is to go to the disk too."""
    from_host_bytes: int = 0
    to_disk_bytes: int = 0
    from_disk_bytes: int = 0
    n_damaged: int = 0
    """Files and blocks on the disk that were not what had been written, and were missed."""


class RequestStats(msgspec.Struct, frozen=True, kw_only=True):
    """One answer (one of a request's choices) as it stands between two steps."""

    uid: int
    request_id: str
    index: int
    """Which of the request's n choices this is."""
    status: str
    """A value of engine.types.Status."""
    n_prompt: int
    n_cached: int
    """Prompt tokens found in the prefix cache at admission."""
    n_computed: int
    """Tokens whose KV exists, cached ones included."""
    n_output: int
    n_blocks: int
    age_s: float
    """Since arrival."""
    ttft_s: float | None = None
    """Arrival to first token; None before it."""
    tok_s: float = 0.0
    """Output tokens per second since the first token; 0 before the second one."""


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine between two steps. n_free + n_cached + n_pinned + n_used = n_blocks; shared blocks are among the used ones."""

    time_s: float
    n_running: int
    """Answers that own blocks and take part in steps."""
    n_waiting: int
    """Answers in the queue, preempted ones among them."""
    n_blocks: int
    n_free: int
    """Blocks without content."""
    n_cached: int
    """Blocks in no table whose content can still be found."""
    n_shared: int
    """Blocks in more than one table."""
    n_used: int
    """Blocks in at least one table."""
    n_room_tokens: int = 0
    """Tokens for which those of attention layers have room."""
    n_wasted_tokens: int = 0
    """Of those, tokens that no answer has yet."""
    block_size: int
    """Tokens of one block."""
    counters: EngineCounters
    n_pinned: int = 0
    """Blocks in no table that are pinned."""
    n_host_blocks: int = 0
    """Slots of host memory for blocks that leave the cache."""
    n_host_used: int = 0
    n_disk_blocks: int = 0
    """Blocks on the disk that this engine can load."""
    disk_bytes: int = 0
    """What the disk holds, for other models too."""
    disk_most_bytes: int = 0
    """What it may hold; 0 where there is none."""
    last_step_s: float = 0.0
    last_step_tokens: int = 0
    requests: list[RequestStats] = []
    """Waiting, running and preempted answers; finished ones are gone."""
    blocks: bytes = b""
    """One BlockState for each block, by block id."""
    owners: list[int] = []
    """uid of (one of) the request(s) that hold the block, by block id; -1 where none does."""

    @property
    def waste(self) -> float:
        """Share of the room in used blocks that holds no token, 0 to 1."""
        return self.n_wasted_tokens / self.n_room_tokens if self.n_room_tokens else 0.0
