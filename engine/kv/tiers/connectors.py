"""Connectors: several connectors as one. A prefix may lie in pieces: its beginning on a disk, the rest in shared memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from engine.kv.tiers.connector import Connector, Holdings


class Connectors:
    """Where several have the next block, the one that has the longest run of them is asked, the first of equals.

    What is stored goes to all of them.
    """

    def __init__(self, *parts: Connector) -> None:
        """parts: the fastest first."""
        self._parts = parts

    def match(self, keys: Sequence[bytes]) -> int:
        return sum(n for _, n in self._runs(keys))

    def _runs(self, keys: Sequence[bytes]) -> list[tuple[Connector, int]]:
        """(who has them, how many) of the leading keys, piece by piece."""
        runs: list[tuple[Connector, int]] = []
        while keys:
            n, part = max(((part.match(keys), part) for part in self._parts), key=lambda found: found[0])
            if not n:
                break
            runs.append((part, n))
            keys = keys[n:]
        return runs

    def load(self, keys: Sequence[bytes], slots: Sequence[int], done: Callable[[int], None]) -> None:
        runs = self._runs(keys)
        if not runs:
            done(0)
            return
        all_done = _Loads([n for _, n in runs], done)
        start = 0
        for i, (part, n) in enumerate(runs):
            part.load(keys[start : start + n], slots[start : start + n], all_done.of(i))
            start += n

    def store(self, keys: Sequence[bytes], slots: Sequence[int], done: Callable[[], None]) -> None:
        stores = _Loads([0] * len(self._parts), lambda _: done())
        for i, part in enumerate(self._parts):
            one_done = stores.of(i)
            part.store(keys, slots, lambda one_done=one_done: one_done(0))

    def holdings(self) -> Holdings:
        return Holdings(*map(sum, zip(*(part.holdings() for part in self._parts), strict=True)))

    def clear(self) -> None:
        for part in self._parts:
            part.clear()

    def close(self) -> None:
        for part in self._parts:
            part.close()


class _Loads:
    """Counts the pieces that are done, and says once how many leading blocks there are."""

    def __init__(self, wanted: list[int], done: Callable[[int], None]) -> None:
        self._wanted = wanted
        self._got = [0] * len(wanted)
        self._n_left = len(wanted)
        self._done = done
        self._lock = threading.Lock()

    def of(self, i: int) -> Callable[[int], None]:
        def one_done(n: int) -> None:
            with self._lock:
                self._got[i] = n
                self._n_left -= 1
                is_last = self._n_left == 0
            if is_last:
                self._done(self._n_leading())

        return one_done

    def _n_leading(self) -> int:
        n = 0
        for wanted, got in zip(self._wanted, self._got, strict=True):
            n += got
            if got < wanted:
                break
        return n
