"""Downloads of models while the server runs: started, watched and cancelled from the page or the API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from app.catalog import pulling
from app.catalog.disk import LocalModel
from app.models.pool import ModelPool
from app.settings import Settings
from app.signal import Signal
from engine.errors import EngineDead, PagewellError

log = logging.getLogger(__name__)

KEEP_S = 600.0
"""How long a download that has ended is still told of."""
AT_ONCE = 2
"""Downloads at a time; they share the network and the disk, so that more would end no sooner."""
_TELL_S = 0.25
_CLOSE_S = 2.0


class _Cancelled(Exception):
    """Ends a download from within."""


@dataclass(slots=True, eq=False)
class Pull:
    """One download."""

    id: int
    name: str
    """As it was asked for."""
    state: Literal["queued", "looking", "downloading", "done", "failed", "cancelled"] = "queued"
    """queued: behind others. looking: at what the hub has, and whether it can be run here."""
    done_bytes: int = 0
    """That are there, those of an earlier download too."""
    total_bytes: int = 0
    model: str = ""
    """What it is called, once it is there."""
    error: str = ""
    hint: str = ""
    ended_s: float = 0.0
    changed: Signal = field(default_factory=Signal)
    is_cancelled: bool = False
    _first: tuple[float, int] | None = None
    """When the first bytes had come from the network (time.monotonic()), and how many."""
    _last: tuple[float, int] = (0.0, 0)

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def left_s(self) -> float | None:
        """Seconds until it is there, by the pace at which it comes; None before there is one."""
        if self.ended or self._first is None or self._last[1] <= self._first[1]:
            return None
        pace_s = (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])
        return pace_s * (self.total_bytes - self.done_bytes)

    def note(self, done: int, total: int, fetched: int) -> None:
        """How far it is; fetched: bytes of the network, what was there before apart."""
        self.state, self.done_bytes, self.total_bytes = "downloading", done, total
        if fetched:
            self._last = (time.monotonic(), fetched)
            self._first = self._first or self._last


class Pulls:
    """All downloads of this server. A model is downloaded once at a time, and few at once: the others wait for their turn."""

    def __init__(self, pool: ModelPool, settings: Settings) -> None:
        self._pool = pool
        self._settings = settings
        self._all: dict[int, Pull] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._work: dict[int, asyncio.Future[LocalModel]] = {}
        # Not the event loop's own threads: requests need those.
        self._threads = ThreadPoolExecutor(AT_ONCE, "pull")
        self._is_closed = False
        self._n = 0

    @property
    def all(self) -> list[Pull]:
        """Those under way, and those that ended a while ago; the newest first."""
        horizon = time.monotonic() - KEEP_S
        self._all = {id: pull for id, pull in self._all.items() if not pull.ended or pull.ended_s > horizon}
        return list(reversed(self._all.values()))

    def get(self, id: int) -> Pull | None:
        return self._all.get(id)

    def start(self, name: str) -> Pull:
        """Begin to download, or join a download of the same that is under way. Raises EngineDead when the server is stopping."""
        if self._is_closed:
            raise EngineDead("The server is stopping.", "Come back when it runs again.")
        for pull in self.all:
            if pulling.same(pull.name, name) and not (pull.ended or pull.is_cancelled):
                return pull
        self._n += 1
        pull = self._all[self._n] = Pull(self._n, name)
        self._tasks[pull.id] = asyncio.create_task(self._run(pull), name=f"pull-{pull.id}")
        return pull

    def cancel(self, pull: Pull) -> None:
        """End it, in whatever phase it is. What is there stays, and the next pull goes on from it."""
        pull.is_cancelled = True
        if pull.state == "queued" and (work := self._work.get(pull.id)) is not None:
            work.cancel()

    async def close(self) -> None:
        """The server stops: downloads end."""
        self._is_closed = True
        for pull in self._all.values():
            self.cancel(pull)
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=_CLOSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def watch(self, pull: Pull) -> AsyncIterator[Pull]:
        """The download each time that it has changed, and a last time when it has ended."""
        while not pull.ended:
            yield pull
            await pull.changed.wait(1.0)
        yield pull

    async def _run(self, pull: Pull) -> None:
        try:
            work = asyncio.get_running_loop().run_in_executor(self._threads, self._pull, pull, asyncio.get_running_loop())
            self._work[pull.id] = work
            model = await work
            await self._pool.look(fresh_s=0)
            host = self._pool.at(model.path)
            pull.model = host.name if host is not None else model.name
            pull.state = "done"
        except _Cancelled:
            pull.state = "cancelled"
        except asyncio.CancelledError:
            pull.state = "cancelled"
            if not pull.is_cancelled:
                raise
        except PagewellError as error:
            pull.state, pull.error, pull.hint = "failed", error.message, error.hint
        except Exception as error:
            log.exception("Pulling %s failed", pull.name)
            pull.state, pull.error = "failed", f"{type(error).__name__}: {error}"
        finally:
            pull.ended_s = time.monotonic()
            self._tasks.pop(pull.id, None)
            self._work.pop(pull.id, None)
            pull.changed.notify()

    def _pull(self, pull: Pull, loop: asyncio.AbstractEventLoop) -> LocalModel:
        """On a thread of its own."""
        told_s = 0.0

        def check() -> None:
            if pull.is_cancelled:
                raise _Cancelled

        def tell(done: int, total: int, fetched: int) -> None:
            nonlocal told_s
            check()
            pull.note(done, total, fetched)
            if (now := time.monotonic()) - told_s > _TELL_S or done == total:
                told_s = now
                loop.call_soon_threadsafe(pull.changed.notify)

        def begin() -> None:
            if pull.state == "queued":
                pull.state = "looking"
            pull.changed.notify()

        check()
        place = pulling.Place(self._settings.engine_for, self._pool.room.alone_bytes)
        loop.call_soon_threadsafe(begin)
        return pulling.pull(pull.name, None, tell, check, place)
