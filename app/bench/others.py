"""Whether a measurement had the machine to itself: processor time that went to programs which are not part of it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

import psutil

TOO_MUCH = 0.1
"""Cores; with more taken by others, figures are not worth keeping."""


class Others:
    """From its making on: cores that others used on average, among them what a hypervisor gave to other machines."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        """pids: servers that are part of the measurement, with their children, beside this process itself."""
        self._pids = tuple(pids)
        self._began = time.perf_counter()
        self._busy_s, self._own_s = _busy_s(), self._own()

    def cores(self) -> float:
        taken_s = (_busy_s() - self._busy_s) - (self._own() - self._own_s)
        return max(0.0, taken_s / (time.perf_counter() - self._began))

    def _own(self) -> float:
        mine = os.times()
        total_s = mine.user + mine.system
        for pid in self._pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                for one in (process, *process.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        times = one.cpu_times()
                        total_s += times.user + times.system
        return total_s


def wait_quiet(patience_s: float) -> bool:
    """Return when nobody computes for half a second while we do not either, at the latest after patience_s; whether it is so."""
    deadline = time.monotonic() + patience_s
    while True:
        others = Others()
        time.sleep(0.5)
        if others.cores() <= TOO_MUCH:
            return True
        if time.monotonic() > deadline:
            return False


def warning(cores: float) -> str | None:
    """What to tell a person about it, or None."""
    if cores <= TOO_MUCH:
        return None
    return f"Other programs took {cores:.1f} cores meanwhile: do not trust these figures."


def _busy_s() -> float:
    """Seconds that all cores together did not idle, since the machine started. Linux counts guests within user."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return sum(times) - idle
