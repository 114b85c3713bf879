"""DiskTier: the connector that keeps blocks in a DiskStore, on threads of its own."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Sequence

from engine.kv.tiers.connector import Buffers, Holdings
from engine.kv.tiers.disk import DiskStore

log = logging.getLogger(__name__)

READERS = 2
"""Threads that read at once: the memory that they fill is mostly new, which takes as long as reading files that are cached."""
CLOSE_S = 5.0
"""How long the end of the engine waits for the disk."""
_LOAD, _STORE, _CLOSE = range(3)
"""Loads go before stores: somebody waits for them."""


class DiskTier:
    """buffers(slot): the memory of a slot, valid for as long as this lives."""

    def __init__(self, disk: DiskStore, buffers: Callable[[int], Buffers]) -> None:
        self.disk = disk
        self._buffers = buffers
        self._orders: queue.PriorityQueue[tuple[int, int, Callable[[], None]]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="kv-disk", daemon=True)
        self._thread.start()

    def match(self, keys: Sequence[bytes]) -> int:
        return next((i for i, key in enumerate(keys) if key not in self.disk), len(keys))

    def load(self, keys: Sequence[bytes], slots: Sequence[int], done: Callable[[int], None]) -> None:
        def run() -> None:
            there = [False] * len(keys)
            try:
                self._read(keys, slots, there)
            finally:
                done(next((i for i, good in enumerate(there) if not good), len(there)))

        self._orders.put((_LOAD, next(self._numbers), run))

    def _read(self, keys: Sequence[bytes], slots: Sequence[int], there: list[bool]) -> None:
        """Fill the slots, each reader every so many of them up to the first that is missed; nobody writes once this returns."""

        def read(first: int) -> None:
            for i in range(first, len(keys), READERS):
                there[i] = self.disk.read(keys[i], self._buffers(slots[i]))
                if not there[i]:
                    return

        others = [threading.Thread(target=read, args=(first,), name="kv-read", daemon=True) for first in range(1, READERS)]
        for other in others:
            other.start()
        try:
            read(0)
        finally:
            for other in others:
                other.join()

    def store(self, keys: Sequence[bytes], slots: Sequence[int], done: Callable[[], None]) -> None:
        def run() -> None:
            try:
                self.disk.write([(key, self._buffers(slot)) for key, slot in zip(keys, slots, strict=True)])
            finally:
                done()

        self._orders.put((_STORE, next(self._numbers), run))

    def holdings(self) -> Holdings:
        disk = self.disk
        return Holdings(disk.n_blocks, disk.n_bytes, disk.max_bytes, disk.read_bytes, disk.written_bytes, disk.n_damaged)

    def clear(self) -> None:
        self._orders.put((_STORE, next(self._numbers), self.disk.clear))

    def close(self) -> None:
        self._orders.put((_CLOSE, next(self._numbers), lambda: None))
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.warning("The KV cache's disk has not taken everything within %.0f s; the rest is lost", CLOSE_S)

    def _run(self) -> None:
        while True:
            kind, _, run = self._orders.get()
            if kind == _CLOSE:
                return
            try:
                run()
            except Exception:
                log.exception("The KV cache's disk failed")
