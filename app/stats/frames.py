"""What travels over the stats feed: a key frame with everything, then deltas with what changed.

A listener holds one `Frame` (in a `KeyFrame`) and applies each `Delta` whose `seq` is one above its own; the result
equals the frame that the server had. A section that did not change is absent. Times in *_s named `time_s`,
`arrived_s` and `ended_s` are Unix times of the server; all others are durations.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

HISTORY_S = 300.0
"""Points older than this, counted from the newest, are dropped; server and listener use the same rule."""


class ModelSection(msgspec.Struct, frozen=True, kw_only=True):
    """A model and what its loading came to. Sizes are 0 until it is ready."""

    state: str
    """unloaded, waiting (for answers of other models to end), loading, ready or failed."""
    name: str = ""
    progress: float = 0.0
    """Share of the bytes loaded, 0 to 1."""
    error: str = ""
    family: str = ""
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


class TotalsSection(msgspec.Struct, frozen=True, kw_only=True):
    """The engines' gauges, and their counters since the models were loaded, of all models together."""

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
    last_step_s: float = 0.0
    last_step_tokens: int = 0
    n_steps: int = 0
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
    n_requests: int = 0
    n_finished: int = 0
    n_aborted: int = 0
    n_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cached_host_tokens: int = 0
    cached_disk_tokens: int = 0
    output_tokens: int = 0
    prefix_queries: int = 0


class RatesSection(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and steps per second over about the last second."""

    output_tok_s: float = 0.0
    prompt_tok_s: float = 0.0
    steps_s: float = 0.0
    busy: float = 0.0
    """Share of the time that was spent in steps, 0 to 1."""


class LatencySection(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles over the newest 4,096 values of the last minute: time to first token, and between two tokens of an
    answer (ITL)."""

    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None


class ProcessSection(msgspec.Struct, frozen=True, kw_only=True):
    """The server's process and its host."""

    pid: int = 0
    up_s: int = 0
    cpu_cores: float = 0.0
    """Processor cores this process keeps busy."""
    n_cores: int = 0
    rss_bytes: int = 0
    host_used_bytes: int = 0
    host_total_bytes: int = 0


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, in the queue, running, or ended a few seconds ago. (uid, index) names it."""

    uid: int
    index: int
    id: str
    """The client's request id; empty when it ended before a sample saw it."""
    model: str
    """Which one answers it."""
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


class Run(msgspec.Struct, frozen=True, array_like=True):
    """`count` neighbouring blocks in one state (engine.stats.BlockState) with one owner (uid, -1 for none)."""

    state: int
    owner: int
    count: int


class Patch(msgspec.Struct, frozen=True, array_like=True):
    """Blocks start .. start + count are now in this state with this owner."""

    start: int
    count: int
    state: int
    owner: int


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One instant of the history."""

    time_s: float
    output_tok_s: float
    prompt_tok_s: float
    n_running: int
    n_waiting: int
    used: float
    """Share of the KV blocks that are in use, 0 to 1."""
    cached: float
    """Share of the KV blocks that are free to evict but findable, 0 to 1."""


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state at one sample."""

    seq: int
    """Number of the sample; rises by one."""
    time_s: float
    age_s: float
    """How much older than `time_s` the engine's figures are: above 0 while a long step runs."""
    control: str
    """Who may use control actions: open, key or readonly."""
    model: ModelSection
    """The first of `models`."""
    models: tuple[ModelSection, ...]
    """The main model, those in memory, on their way, and whose load has failed; those in memory first."""
    totals: TotalsSection
    rates: RatesSection
    latency: LatencySection
    process: ProcessSection
    requests: tuple[RequestRow, ...]
    """Ordered by (uid, index)."""
    n_hidden: int
    """Waiting answers beyond those listed."""
    blocks: tuple[Run, ...]
    """In block id order, model after model in the order of `models`; neighbours differ."""


class KeyFrame(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a new listener needs."""

    frame: Frame
    history: tuple[Point, ...]


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What frame `seq` has that frame `seq - 1` had not."""

    seq: int
    time_s: float
    age_s: float
    model: ModelSection | UnsetType = UNSET
    models: tuple[ModelSection, ...] | UnsetType = UNSET
    totals: TotalsSection | UnsetType = UNSET
    rates: RatesSection | UnsetType = UNSET
    latency: LatencySection | UnsetType = UNSET
    process: ProcessSection | UnsetType = UNSET
    changed: tuple[RequestRow, ...] | UnsetType = UNSET
    """New rows and rows that differ, whole."""
    removed: tuple[tuple[int, int], ...] | UnsetType = UNSET
    """(uid, index) of rows that are gone."""
    n_hidden: int | UnsetType = UNSET
    patches: tuple[Patch, ...] | UnsetType = UNSET
    point: Point | UnsetType = UNSET
    """The instant that joined the history."""
