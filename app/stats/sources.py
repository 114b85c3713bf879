"""Sources: all models' engines as one, since they share one machine. Block maps and rows follow each other, counts add up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from app.stats.answers import Answers
from app.stats.frames import ModelSection
from app.stats.source import Host, Source
from engine.stats import EngineCounters, EngineStats


class Pool(Protocol):
    """What the feed needs of app.models.pool.ModelPool."""

    @property
    def hosts(self) -> Sequence[Host]: ...

    def each_host(self, callback: Callable[[Any], None]) -> None: ...


class Sources:
    """One Source for each model that the pool knows."""

    def __init__(self, pool: Pool, answers: Answers, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._answers = answers
        self._clock = clock
        self._by_host: dict[int, Source] = {}
        pool.each_host(self._join)

    def _join(self, host: Host) -> None:
        self._by_host[id(host)] = Source(host, self._answers, self._clock)

    @property
    def _all(self) -> list[Source]:
        """In the order of the pool, whose first is the main one."""
        here = {id(host): self._by_host[id(host)] for host in self._pool.hosts}
        self._by_host = here
        return list(here.values())

    async def poll(self, patience_s: float) -> None:
        """Ask all engines at once; see Source.poll."""
        await asyncio.gather(*(source.poll(patience_s) for source in self._all))

    @property
    def answered(self) -> list[tuple[str, EngineStats]]:
        """(model, its last answer) of each that is in memory."""
        return [(source.name, source.stats) for source in self._all if source.stats is not None]

    @property
    def age_s(self) -> float:
        """How old the oldest answer is."""
        return max((source.age_s for source in self._all), default=0.0)

    def models(self) -> tuple[ModelSection, ...]:
        """The main model, and those in memory, on their way, or whose load has failed. The ones in memory come first."""
        main, *others = (source.model() for source in self._all)
        shown = [main, *(section for section in others if section.state != "unloaded")]
        return tuple(sorted(shown, key=lambda section: _ORDER.get(section.state, len(_ORDER))))

    def abort(self, uid: int) -> bool:
        """Abort a request that waits or runs; False if there is none of this number."""
        for source in self._all:
            engine = source.engine
            if engine is not None and engine.is_live(uid):
                engine.abort(uid)
                return True
        return False

    async def close(self) -> None:
        await asyncio.gather(*(source.close() for source in self._all))


_ORDER = {state: place for place, state in enumerate(("ready", "loading", "waiting", "failed"))}


def joined(parts: Sequence[EngineStats]) -> EngineStats | None:
    """One set of statistics for several engines; None for none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    # The disk's limit is of all models together; a step of one ends while another's goes on.
    most = {name: max(getattr(part, name) for part in parts) for name in _MOST}
    sums = {name: sum(getattr(part, name) for part in parts) for name in _SUMS}
    counters = {name: sum(getattr(part.counters, name) for part in parts) for name in EngineCounters.__struct_fields__}
    return EngineStats(
        **most,
        **sums,
        block_size=parts[0].block_size,
        counters=EngineCounters(**counters),
        requests=[row for part in parts for row in part.requests],
        blocks=b"".join(part.blocks for part in parts),
        owners=[owner for part in parts for owner in part.owners],
    )


_MOST = ("time_s", "disk_bytes", "disk_most_bytes", "last_step_s")
_SUMS = tuple(
    field.name
    for field in msgspec.structs.fields(EngineStats)
    if field.name not in (*_MOST, "block_size", "counters", "requests", "blocks", "owners")
)
