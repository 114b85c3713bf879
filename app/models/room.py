"""Room: one load at a time, and memory made for it. Models leave only when nobody uses them, the least recently used first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from app.models.host import ModelHost, NobodyWaits
from app.models.memory import Memory
from engine.errors import PagewellError

log = logging.getLogger(__name__)

TURN_S = 5.0
"""A model that is in use and has to leave takes no new requests from so long after its load on. Requests for two models that
do not fit together would else cost a load each, or those for one would keep the others waiting for ever."""
_LOOK_S = 0.05


class Room:
    """Loads take their turns in the order in which they were asked for."""

    def __init__(self, hosts: Callable[[], Sequence[ModelHost]], memory: Memory) -> None:
        """hosts: all that may be in memory."""
        self._hosts = hosts
        self._memory = memory
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, host: ModelHost) -> AsyncIterator[None]:
        """Inside, `host` may load. If it cannot, those that left for it come back. Raises PagewellError, before anything leaves,
        for a model that could not run even alone, and NobodyWaits once all who asked for it have left."""
        if self._lock.locked():
            host.state = "waiting"
        async with self._lock:
            left = await self._make(host)
            try:
                yield
            except BaseException:
                for other in left:
                    self._bring_back(other)
                raise

    @property
    def loaded(self) -> list[ModelHost]:
        """Those in memory."""
        return [host for host in self._hosts() if host.current is not None]

    @property
    def alone_bytes(self) -> int:
        """What a model may have that needs all others to leave."""
        return self._memory.free_bytes(self.loaded, without=self.loaded)

    async def _make(self, host: ModelHost) -> list[ModelHost]:
        """Wait until there is room, and unload for it what must go; those that went."""
        left: list[ModelHost] = []
        chosen: list[ModelHost] = []
        try:
            while True:
                for other in self._hosts():
                    if other.current is None:
                        await other.gone()  # what is being unloaded, `host` perhaps, has not given its memory back yet
                going = await self._who_goes(host)
                if not host.is_wanted:
                    raise NobodyWaits
                if not going:
                    return left
                if not any(other.is_busy for other in going):
                    other = going[0]
                    log.info("%s leaves memory for %s", other.name, host.name)
                    left.append(other)
                    await other.unload()
                    continue
                # Whoever was chosen first stays chosen: with all of them in use, the order changes with each request.
                if not chosen or any(other.current is None for other in chosen):
                    for other in chosen:
                        if other not in going:
                            other.stay()
                    chosen = going
                host.state, host.waits_for = "waiting", tuple(other.name for other in chosen)
                for other in chosen:
                    other.leave_at(max(time.monotonic(), other.ready_s + TURN_S))
                await asyncio.sleep(_LOOK_S)
        except BaseException:
            for other in left:
                self._bring_back(other)
            raise
        finally:
            for other in chosen:
                other.stay()

    async def _who_goes(self, host: ModelHost) -> list[ModelHost]:
        """The fewest whose leaving gives the model the window that it would have alone: idle ones first, and among them those
        that were used longest ago."""
        loaded = [other for other in self.loaded if other is not host]
        if host.window_in is None or not loaded:
            return []
        loaded.sort(key=lambda other: (other.is_busy, other.last_used_s))
        rooms = [self._memory.free_bytes(loaded, without=loaded[:n]) for n in range(len(loaded) + 1)]
        alone = await asyncio.to_thread(host.window_in, rooms[-1])
        for n, free in enumerate(rooms[:-1]):
            try:
                if await asyncio.to_thread(host.window_in, free) >= alone:
                    return loaded[:n]
            except PagewellError:
                continue  # it does not fit beside those that would stay
        return loaded

    def _bring_back(self, host: ModelHost) -> None:
        try:
            host.load()
        except PagewellError as error:  # the server is stopping
            log.info("%s does not come back: %s", host.name, error.message)
