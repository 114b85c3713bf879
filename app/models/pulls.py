"""Downloads of models while the server runs: started, watched and cancelled from the page or the API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal

from app.catalog import pulling
from app.models.pool import ModelPool
from app.signal import Signal
from engine.errors import PagewellError

log = logging.getLogger(__name__)

KEEP_S = 600.0
"""How long a download that has ended is still told of."""
_TELL_S = 0.25


class _Cancelled(Exception):
    """Ends a download from within."""


@dataclass(slots=True, eq=False)
class Pull:
    """One download."""

    id: int
    name: str
    """As it was asked for."""
    state: Literal["looking", "downloading", "done", "failed", "cancelled"] = "looking"
    """looking: at what the hub has, and whether it can be run here."""
    done_bytes: int = 0
    total_bytes: int = 0
    model: str = ""
    """What it is called, once it is there."""
    error: str = ""
    hint: str = ""
    ended_s: float = 0.0
    changed: Signal = field(default_factory=Signal)
    is_cancelled: bool = False
    began_s: float = field(default_factory=time.monotonic)

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def left_s(self) -> float | None:
        """Seconds until it is there, by the pace so far; None before there is one."""
        if self.ended or not self.done_bytes:
            return None
        return (time.monotonic() - self.began_s) / self.done_bytes * (self.total_bytes - self.done_bytes)


class Pulls:
    """All downloads of this server. A name is downloaded once at a time."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool
        self._all: dict[int, Pull] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
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
        """Begin to download, or join a download of this name that is under way."""
        for pull in self.all:
            if pull.name == name and not pull.ended:
                return pull
        self._n += 1
        pull = self._all[self._n] = Pull(self._n, name)
        self._tasks[pull.id] = asyncio.create_task(self._run(pull), name=f"pull-{pull.id}")
        return pull

    def cancel(self, pull: Pull) -> None:
        """End it at its next piece. What is there stays, and the next pull goes on from it."""
        pull.is_cancelled = True

    async def close(self) -> None:
        """The server stops: downloads end at their next piece."""
        for pull in self._all.values():
            self.cancel(pull)
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=2.0)

    async def watch(self, pull: Pull) -> AsyncIterator[Pull]:
        """The download each time that it has changed, and a last time when it has ended."""
        while not pull.ended:
            yield pull
            await pull.changed.wait(1.0)
        yield pull

    async def _run(self, pull: Pull) -> None:
        loop = asyncio.get_running_loop()
        told_s = 0.0

        def tell(done: int, total: int) -> None:
            """On the download's thread."""
            nonlocal told_s
            if pull.is_cancelled:
                raise _Cancelled
            pull.state, pull.done_bytes, pull.total_bytes = "downloading", done, total
            if (now := time.monotonic()) - told_s > _TELL_S or done == total:
                told_s = now
                loop.call_soon_threadsafe(pull.changed.notify)

        try:
            model = await asyncio.to_thread(pulling.pull, pull.name, None, tell)
            await self._pool.look(fresh_s=0)
            host = self._pool.at(model.path)
            pull.model = host.name if host is not None else model.name
            pull.state = "done"
        except _Cancelled:
            pull.state = "cancelled"
        except PagewellError as error:
            pull.state, pull.error, pull.hint = "failed", error.message, error.hint
        except Exception as error:
            log.exception("Pulling %s failed", pull.name)
            pull.state, pull.error = "failed", f"{type(error).__name__}: {error}"
        finally:
            pull.ended_s = time.monotonic()
            self._tasks.pop(pull.id, None)
            pull.changed.notify()
