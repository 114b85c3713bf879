"""Exchange: what goes to the connector and what comes from it, through slots of host memory that are nobody else's meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.kv.blocks import BlockPool
from engine.kv.connector import Connector
from engine.kv.host import HostTier
from engine.types import Sequence as Answer

STORED_BYTES, STORED_BYTES_IDLE = 1 << 20, 16 << 20
"""Copied to host memory for the connector in one step: beside answers, and without any."""
STORED_TOGETHER = 32
"""Blocks that are given to the connector at once, where there are as many: a disk makes a file of them."""
STORING_SHARE, FETCHING_SHARE = 8, 2
"""One part of host memory in so many may wait for the connector to read it, and may be filled for one sequence."""
FETCH_S = 10.0
"""A sequence waits no longer than this for blocks that the connector has promised; it computes them then."""


class Exchange:
    """All methods belong to the engine thread; `post` runs a function there, from any thread."""

    def __init__(
        self,
        pool: BlockPool,
        host: HostTier,
        connector: Connector,
        block_bytes: int,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self.n_fetched = self.n_stored = 0
        """Blocks that the connector brought, and that were given to it."""
        self.fetch_s = FETCH_S
        self._pool = pool
        self._host = host
        self._connector = connector
        self._post = post
        self._fetching: dict[Answer, float] = {}
        """Sequence -> until when it waits."""
        self._arriving: dict[bytes, float] = {}
        """Key of a block that was asked for -> until when others wait for it."""
        self._to_store: dict[bytes, None] = {}
        self._storing: list[tuple[bytes, int, bool]] = []
        """(key, slot, whether the slot holds a copy that is found under this key, or one for the connector only)"""
        self._starved = False
        """Whether no slot could be had although no plan needed one: what the connector has under way must end first."""
        self._n_given = 0
        """Blocks that the connector is reading."""
        self._most_given = max(1, host.n_slots // STORING_SHARE)
        self._n_together = min(STORED_TOGETHER, self._most_given)
        self._n_busy, self._n_idle = (max(1, n // block_bytes) for n in (STORED_BYTES, STORED_BYTES_IDLE))

    @property
    def is_fetching(self) -> bool:
        """Whether a sequence may be waiting for the connector."""
        now = time.monotonic()
        return any(until >= now for promised in (self._fetching, self._arriving) for until in promised.values())

    @property
    def has_stores(self) -> bool:
        """Whether there are blocks that can be given to the connector now."""
        return bool(self._to_store) and not self._starved and self._n_given + len(self._storing) < self._most_given

    @property
    def has_rest(self) -> bool:
        """Whether there are blocks that the connector is to have, now or later."""
        return bool(self._to_store)

    def waits(self, seq: Answer) -> bool:
        """Whether this sequence was promised blocks that are still to come."""
        until = self._fetching.get(seq)
        if until is not None and time.monotonic() > until:
            del self._fetching[seq]
            return False
        return until is not None

    def fetch(self, seq: Answer, known: list[bytes], wanted: list[bytes]) -> bool:
        """Whether a sequence has to wait for the first of the blocks that it wants next, which come after the known ones.

        The connector is asked once for each sequence.
        """
        if seq.fetched or not wanted:
            return False
        if (until := self._arriving.get(wanted[0])) is not None:
            return time.monotonic() <= until
        n_there = self._connector.match(wanted)
        if not n_there:
            return False
        for key in known:
            self._host.refresh(key)  # what is fetched must not push out what it continues
        slots = self._host.reserve(min(n_there, self._host.n_slots // FETCHING_SHARE))
        if not slots:
            return False
        keys, until = wanted[: len(slots)], time.monotonic() + self.fetch_s
        seq.fetched = True
        self._fetching[seq] = until
        self._arriving |= dict.fromkeys(keys, until)
        self._connector.load(keys, slots, lambda n_loaded: self._post(lambda: self._fetched(seq, keys, slots, n_loaded)))
        return True

    def _fetched(self, seq: Answer, keys: list[bytes], slots: list[int], n_loaded: int) -> None:
        for i, (key, slot) in enumerate(zip(keys, slots, strict=True)):
            self._host.put(slot, key if i < n_loaded else None)
            self._arriving.pop(key, None)
        self._fetching.pop(seq, None)
        self._starved = False
        self.n_fetched += n_loaded

    def forget(self, seq: Answer) -> None:
        """This sequence waits no longer; what was asked for still comes."""
        self._fetching.pop(seq, None)

    def keep(self, keys: Sequence[bytes]) -> None:
        """The connector is to have the blocks of this prefix in time."""
        self._to_store |= dict.fromkeys(keys[self._connector.match(keys) :])

    def clear(self) -> None:
        """Forget what the connector has, and what it was to have."""
        self._to_store = {}
        self._connector.clear()

    def prepare(self, *, idle: bool) -> list[tuple[int, int]]:
        """Hold copies in host memory of the next blocks to be stored; (block, slot) of those copies that have to be made."""
        copies: list[tuple[int, int]] = []
        n = min(self._n_idle if idle else self._n_busy, self._most_given - self._n_given - len(self._storing))
        while n > 0 and self._to_store:
            key = next(iter(self._to_store))
            if key in self._host:
                self._storing.append((key, self._host.hold(key), True))
            elif (block := self._pool.find(key)) is not None:
                slots = self._host.reserve(1)
                if not slots:
                    self._starved = idle
                    break
                copies.append((block.id, slots[0]))
                self._storing.append((key, slots[0], False))
            del self._to_store[key]
            n -= 1
        return copies

    def submit(self) -> None:
        """The copies are made: the connector may read them, many at once or what is left."""
        if not self._storing or (self.has_stores and len(self._storing) < self._n_together):
            return
        given, self._storing = self._storing, []
        self._n_given += len(given)
        self.n_stored += len(given)
        keys, slots = [key for key, _, _ in given], [slot for _, slot, _ in given]
        self._connector.store(keys, slots, lambda: self._post(lambda: self._stored(given)))

    def _stored(self, given: list[tuple[bytes, int, bool]]) -> None:
        self._n_given -= len(given)
        self._starved = False
        for _, slot, found in given:
            if found:
                self._host.let_go(slot)
            else:
                self._host.put(slot, None)
