"""The feed's data as the dashboard uses it. Fields it does not know are ignored, so a newer server is no error.

Unix times end in `time_s`, `arrived_s`, `ended_s`; other *_s are durations. Strings come from strangers: paint them as
plain text only (tui.text.plain).
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

HISTORY_S = 300.0

FREE, USED, SHARED, CACHED, PINNED = range(5)
"""States of a KV block."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    """unloaded, waiting (for answers of other models to end), loading, ready or failed."""
    name: str = ""
    progress: float = 0.0
    error: str = ""
    quantization: str = ""
    dtype: str = ""
    max_model_len: int = 0
    n_params: int = 0
    weights_bytes: int = 0
    kv_bytes: int = 0
    block_size: int = 0
    memory_note: str = ""
    """How window, cache and batch were fitted, in words."""
    kv_groups: dict[str, int] = {}
    """What layers need, and the blocks that they have for it, in the order of the blocks."""
    waits_for: tuple[str, ...] = ()
    """Models that have to leave before this one comes."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    n_running: int = 0
    n_waiting: int = 0
    n_blocks: int = 0
    n_free: int = 0
    n_cached: int = 0
    n_shared: int = 0
    n_used: int = 0
    n_wasted_tokens: int = 0
    waste: float = 0.0
    """Share of the room in used blocks that holds no token, 0 to 1."""
    n_pinned: int = 0
    n_host_blocks: int = 0
    n_host_used: int = 0
    n_disk_blocks: int = 0
    disk_bytes: int = 0
    disk_most_bytes: int = 0
    """0 where nothing is kept on disk."""
    last_step_s: float = 0.0
    last_step_tokens: int = 0
    n_preemptions: int = 0
    n_swaps: int = 0
    n_demoted: int = 0
    n_promoted: int = 0
    n_stored: int = 0
    n_fetched: int = 0
    n_evictions: int = 0
    n_host_evictions: int = 0
    to_host_bytes: int = 0
    from_host_bytes: int = 0
    to_disk_bytes: int = 0
    from_disk_bytes: int = 0
    n_damaged: int = 0
    n_finished: int = 0
    n_aborted: int = 0
    n_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cached_host_tokens: int = 0
    cached_disk_tokens: int = 0
    output_tokens: int = 0
    prefix_queries: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Share of the looked-up prompt tokens that came from the cache; None before the first look-up."""
        return self.cached_tokens / self.prefix_queries if self.prefix_queries else None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    output_tok_s: float = 0.0
    prompt_tok_s: float = 0.0
    steps_s: float = 0.0
    busy: float = 0.0
    """Share of the time that the server spent in steps, 0 to 1."""


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None


class Process(msgspec.Struct, frozen=True, kw_only=True):
    up_s: int = 0
    cpu_cores: float = 0.0
    n_cores: int = 0
    rss_bytes: int = 0
    host_used_bytes: int = 0
    host_total_bytes: int = 0


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    uid: int
    index: int
    id: str
    model: str = ""
    """Which one answers it; older servers have but one and do not say."""
    state: str
    """pending, running, preempted, completed, aborted or failed."""
    n_prompt: int
    n_cached: int
    n_computed: int
    n_output: int
    n_blocks: int
    arrived_s: float
    ended_s: float | None = None
    ttft_s: float | None = None
    tok_s: float = 0.0

    @property
    def key(self) -> tuple[int, int]:
        return self.uid, self.index

    @property
    def live(self) -> bool:
        return self.ended_s is None

    @property
    def n_new(self) -> int:
        """Prompt tokens that have to be computed."""
        return self.n_prompt - self.n_cached

    @property
    def prefill(self) -> float:
        """How far the prompt's uncached part is computed, 0 to 1."""
        return 1.0 if self.n_new <= 0 else min(1.0, max(0, self.n_computed - self.n_cached) / self.n_new)


class Run(msgspec.Struct, frozen=True, array_like=True):
    """`count` neighbouring blocks in one state with one owner (uid, -1 for none)."""

    state: int
    owner: int
    count: int


class Patch(msgspec.Struct, frozen=True, array_like=True):
    start: int
    count: int
    state: int
    owner: int


class Point(msgspec.Struct, frozen=True, array_like=True):
    time_s: float
    output_tok_s: float
    prompt_tok_s: float
    n_running: int
    n_waiting: int
    used: float
    cached: float


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The server's state at one sample."""

    seq: int
    time_s: float
    age_s: float
    control: str
    """Who may abort: open, key or readonly."""
    model: Model
    totals: Totals
    rates: Rates
    latency: Latency
    process: Process
    requests: tuple[RequestRow, ...]
    n_hidden: int
    blocks: tuple[Run, ...]
    models: tuple[Model, ...] = ()
    """The main one, those in memory, on their way, and whose load has failed; those in memory first, in the order of the
    blocks. `model` is the first."""

    @property
    def loaded(self) -> tuple[Model, ...]:
        """Models in memory."""
        return tuple(model for model in self.models or (self.model,) if model.state == "ready")


class KeyFrame(msgspec.Struct, frozen=True, kw_only=True):
    frame: Frame
    history: tuple[Point, ...]


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What a frame has that the one before had not; an absent section did not change."""

    seq: int
    time_s: float
    age_s: float
    model: Model | UnsetType = UNSET
    models: tuple[Model, ...] | UnsetType = UNSET
    totals: Totals | UnsetType = UNSET
    rates: Rates | UnsetType = UNSET
    latency: Latency | UnsetType = UNSET
    process: Process | UnsetType = UNSET
    changed: tuple[RequestRow, ...] = ()
    removed: tuple[tuple[int, int], ...] = ()
    n_hidden: int | UnsetType = UNSET
    patches: tuple[Patch, ...] = ()
    point: Point | UnsetType = UNSET
