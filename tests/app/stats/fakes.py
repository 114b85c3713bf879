"""A host and an engine whose statistics a test sets, and a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from engine.info import ModelInfo
from engine.stats import EngineCounters, EngineStats, RequestStats
from engine.types import Delta, Event, Finished, FinishReason, Started, Usage


class Clock:
    """time.monotonic() that moves when told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def stats(
    now: float, blocks: Sequence[tuple[int, int]] = (), requests: Sequence[RequestStats] = (), **counters: Any
) -> EngineStats:
    """Statistics of a pool given as (state, owner) per block."""
    states = bytes(state for state, _ in blocks)
    used, shared, cached = states.count(1) + states.count(2), states.count(2), states.count(3)
    return EngineStats(
        time_s=now,
        n_running=sum(r.status == "running" for r in requests),
        n_waiting=sum(r.status != "running" for r in requests),
        n_blocks=len(blocks),
        n_free=len(blocks) - used - cached,
        n_cached=cached,
        n_shared=shared,
        n_used=used,
        block_size=16,
        counters=EngineCounters(**counters),
        requests=list(requests),
        blocks=states,
        owners=[owner for _, owner in blocks],
    )


def request(uid: int, status: str = "running", **fields: Any) -> RequestStats:
    values = {"request_id": f"req-{uid}", "index": 0, "n_prompt": 100, "n_cached": 16, "n_computed": 100, "n_output": 1}
    values |= {"n_blocks": 7, "age_s": 2.0} | fields
    return RequestStats(uid=uid, status=status, **values)


class FakeEngine:
    """Answers with `now`; while `busy` is set, only after it is released."""

    def __init__(self, now: EngineStats) -> None:
        self.info = ModelInfo(
            name="tiny", path="tiny.gguf", family="llama", quantization="Q4_1", max_model_len=2048, n_vocab=99, n_params=1,
            weights_bytes=2, kv_bytes=3, n_blocks=now.n_blocks, block_size=16, dtype="float32", digest="d", memory_note="",
        )  # fmt: skip
        self.observers: list[Callable[[Event], None]] = []
        self.now = now
        self.error: Exception | None = None
        self.busy: asyncio.Event | None = None
        self.n_asked = 0
        self.aborted: list[int] = []
        self.accepted: set[int] = set()
        """Requests in the inbox, which the statistics do not have yet."""

    async def stats(self) -> EngineStats:
        self.n_asked += 1
        if self.busy is not None:
            await self.busy.wait()
        if self.error is not None:
            raise self.error
        return self.now

    def is_live(self, uid: int) -> bool:
        return uid in self.accepted or any(request.uid == uid for request in self.now.requests)

    def abort(self, uid: int) -> None:
        self.aborted.append(uid)

    def emit(self, *events: Event) -> None:
        for event in events:
            for observer in self.observers:
                observer(event)


class FakeHost:
    """As app.models.host.ModelHost looks to the feed. Reading `engine` would count as use of the model, so it must not happen."""

    def __init__(self) -> None:
        self.name = "tiny"
        self.state = "loading"
        self.progress = 0.25
        self.error: Exception | None = None
        self.waits_for: tuple[str, ...] = ()
        self.on_ready: list[Callable[[Any], None]] = []
        self.on_unload: list[Callable[[Any], None]] = []

    @property
    def engine(self) -> Any:
        raise AssertionError("the feed must not use the model")

    def become_ready(self, engine: FakeEngine) -> None:
        for callback in self.on_ready:
            callback(engine)
        self.state, self.progress = "ready", 1.0


class FakePool:
    """As app.models.pool.ModelPool looks to the feed."""

    def __init__(self, *hosts: FakeHost) -> None:
        self.hosts = list(hosts)

    def each_host(self, callback: Callable[[Any], None]) -> None:
        for host in self.hosts:
            callback(host)


def started(uid: int, queued_s: float = 0.0) -> Started:
    return Started(uid, n_prompt=100, n_cached=16, queued_s=queued_s)


def token(uid: int, index: int = 0, n: int = 1, finish: FinishReason | None = None) -> Delta:
    return Delta(uid, index, "x" * n, tuple(range(n)), finish_reason=finish)


def finished(uid: int, reason: FinishReason = FinishReason.STOP, total_s: float = 3.0) -> Finished:
    usage = Usage(n_prompt=100, n_cached=16, n_output=2, n_preemptions=0, queued_s=0.0, ttft_s=None, total_s=total_s)
    return Finished(uid, reason, usage)
