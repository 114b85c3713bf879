"""SharedTier: the connector by which a process that computes prompts hands their KV to one that answers, on one machine."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

from engine.kv.tiers.connector import Buffers, Holdings
from engine.kv.tiers.shared import SharedStore
from engine.kv.tiers.shared_folder import SharedFolder

log = logging.getLogger(__name__)

CLOSE_S = 5.0
SWEEPS = 4
"""Times in one lease that what is over is returned."""


class SharedTier:
    """One side of it: who hands over only stores, and who takes over only loads, and removes what it has.

    buffers(slot): the memory of a slot, valid for as long as this lives. The folder is released at the end.
    """

    def __init__(self, folder: SharedFolder, store: SharedStore, buffers: Callable[[int], Buffers], *, hands_over: bool) -> None:
        self.shared = store
        self.hands_over = hands_over
        self._folder = folder
        self._buffers = buffers
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kv-shared", daemon=True)
        self._thread.start()

    def match(self, keys: Sequence[bytes]) -> int:
        """Begins the leases of what is there anew: who waits for the end of a prompt keeps its beginning by asking again."""
        if self.hands_over:
            return 0
        return next((i for i, key in enumerate(keys) if not self.shared.renew(key)), len(keys))

    def load(self, keys: Sequence[bytes], slots: Sequence[int], done: Callable[[int], None]) -> None:
        def run() -> None:
            n = 0
            try:
                while n < len(keys) and self.shared.read(keys[n], self._buffers(slots[n])):
                    n += 1
            finally:
                done(n)
            self.shared.take(keys[:n])

        self._orders.put(run)

    def store(self, keys: Sequence[bytes], slots: Sequence[int], done: Callable[[], None]) -> None:
        if not self.hands_over:
            done()
            return

        def run() -> None:
            try:
                self.shared.write([(key, self._buffers(slot)) for key, slot in zip(keys, slots, strict=True)])
            finally:
                done()

        self._orders.put(run)

    def holdings(self) -> Holdings:
        """Nothing stays here."""
        return Holdings()

    def clear(self) -> None:
        self._orders.put(self.shared.clear)

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            log.warning("Shared memory has not taken or given everything within %.0f s; the rest is lost", CLOSE_S)
        self._folder.release()

    def _run(self) -> None:
        rest_s = self.shared.lease_s / SWEEPS
        swept_s = time.monotonic()
        while True:
            try:
                order = self._orders.get(timeout=rest_s)
                if order is None:
                    return
            except queue.Empty:
                order = None
            try:
                if order is not None:
                    order()
                if time.monotonic() - swept_s >= rest_s:
                    self.shared.sweep()
                    swept_s = time.monotonic()
            except Exception:
                log.exception("Handing KV over through shared memory failed")
