"""Exchange: what goes to the connector and what comes from it, through slots of host memory that are nobody else's meanwhile."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial

from engine.kv.match import deepest, needed
from engine.kv.memory import GroupMemory
from engine.kv.tiers.connector import Connector, Holdings
from engine.types import Sequence as Answer

STORED_BYTES, STORED_BYTES_IDLE = 1 << 20, 16 << 20
"""Copied to host memory for the connector in one step, or one block: beside answers, and without any."""
STORED_BUSY_MOST, LARGE_EVERY_S = 8 << 20, 5.0
"""A block above this is copied beside answers, which wait for it, no more than once in so long."""
STORED_TOGETHER = 32
"""Blocks that are given to the connector at once, where there are as many: a disk makes a file of them."""
STORING_SHARE, FETCHING_SHARE = 8, 2
"""One part of host memory in so many may wait for the connector to read it, and may be filled for one sequence."""
KEPT_TOKENS, KEPT_AGAIN_TOKENS = 1024, 256
"""A prefix of so many tokens is given to a connector; a shorter one as far as it was found again, if that is so long. Reading
beats computing from a few hundred tokens on, but a disk should not be worn by what is asked once, which is mostly short."""
FETCH_S = 10.0
"""A sequence waits no longer than this for blocks that the connector has promised; it computes them then."""

Name = tuple[int, bytes]
"""A block: number of its group, and its key."""


class Exchange:
    """All methods belong to the engine thread; `post` runs a function there, from any thread."""

    def __init__(
        self,
        memories: Sequence[GroupMemory],
        block_size: int,
        connector: Connector,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self.n_fetched = self.n_stored = 0
        """Blocks that the connector brought, and that were given to it."""
        self.fetch_s = FETCH_S
        self.keeps = True
        """Whether the connector gets what ended. If not, it gets what is handed over, and that as fast as it takes it."""
        self.kept_tokens, self.kept_again_tokens = KEPT_TOKENS, KEPT_AGAIN_TOKENS
        self._memories = memories
        self._block_size = block_size
        self._groups = [memory.group for memory in memories]
        self._connector = connector
        self._post = post
        self._fetching: dict[Answer, float] = {}
        """Sequence -> until when it waits."""
        self._unfinished: set[Answer] = set()
        """Sequences for which more could be fetched than there was room for."""
        self._brought: dict[Answer, int] = {}
        """Sequence -> blocks that the connector brought for it, until it is admitted."""
        self._arriving: dict[Name, float] = {}
        """Block that was asked for -> until when others wait for it."""
        self._to_store: dict[Name, None] = {}
        self._n_asked = 0
        """Blocks that were ever put there; they leave in that order."""
        self._storing: list[tuple[Name, int, bool]] = []
        """(block, slot, whether the slot holds a copy that is found under this key, or one for the connector only)"""
        self._starved = False
        """Whether no slot could be had although no plan needed one: what the connector has under way must end first."""
        self._has_more = False
        """Whether the next step can add to those that are about to be given."""
        self._large_s = 0.0
        """When a large block was copied last."""
        self._n_given = [0 for _ in memories]
        """Blocks of each group that the connector is reading, or is about to."""
        self._most_given = [max(1, memory.host.n_slots // STORING_SHARE) for memory in memories]

    @property
    def is_fetching(self) -> bool:
        """Whether a sequence may be waiting for the connector."""
        now = time.monotonic()
        return any(until >= now for promised in (self._fetching, self._arriving) for until in promised.values())

    @property
    def has_stores(self) -> bool:
        """Whether there are blocks that can be given to the connector now."""
        return not self._starved and self._next_to_store(is_urgent=True) is not None

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

    def goes_on(self, seq: Answer) -> bool:
        """Whether more may be fetched for a sequence for which something was fetched."""
        return seq in self._unfinished

    def fetch(self, seq: Answer, keys: list[bytes], n_known: int) -> bool:
        """Whether a sequence has to wait for blocks from elsewhere. Of `keys`, all that it can use, n_known are known here.

        The connector is asked once for each sequence, or once more after each round that brought all for which there was room.
        """
        if seq.fetched and not self.goes_on(seq):
            return False
        n = self.reach(keys)
        self._unfinished.discard(seq)
        if n <= n_known:
            seq.fetched = True
            return False
        names = [(g, keys[i]) for g, group in enumerate(self._groups) for i in needed(group, n, self._block_size)]
        for g, key in names:
            self._memories[g].host.refresh(key)  # what is fetched must not push out what it belongs to
        wanted = [(g, key) for g, key in names if not self._is_here(g, key)]
        if promised := [self._arriving[name] for name in wanted if name in self._arriving]:
            return time.monotonic() <= max(promised)
        wanted, is_limited = self._round(wanted)
        slots, wanted = self._slots(wanted)
        seq.fetched = True
        if not slots:
            return False
        until = time.monotonic() + self.fetch_s
        self._fetching[seq] = until
        self._arriving |= dict.fromkeys(wanted, until)
        outer = [_outer(name) for name in wanted]
        done = partial(self._fetched, seq, wanted, slots, is_limited)
        self._connector.load(outer, slots, lambda n_loaded: self._post(partial(done, n_loaded)))
        return True

    def _is_here(self, g: int, key: bytes) -> bool:
        return self._memories[g].find(0, key) is not None

    def reach(self, keys: list[bytes]) -> int:
        """Blocks up to the deepest border at which everything that is needed is here, on its way, or can be fetched."""
        reach: list[int] = []
        """Of groups of all tokens; -1 for others, of which only some blocks are needed."""

        def is_known(g: int, i: int) -> bool:
            return self._is_here(g, keys[i]) or (g, keys[i]) in self._arriving

        for g, group in enumerate(self._groups):
            if not group.keeps_all:
                reach.append(-1)
                continue
            n_here = next((i for i in range(len(keys)) if not is_known(g, i)), len(keys))
            reach.append(n_here + self._connector.match([_outer((g, key)) for key in keys[n_here:]]))

        def is_near(g: int, i: int) -> bool:
            if reach[g] >= 0:
                return i < reach[g]
            return is_known(g, i) or self._connector.match([_outer((g, keys[i]))]) == 1

        return deepest(self._groups, len(keys), self._block_size, is_near)

    def _round(self, wanted: list[Name]) -> tuple[list[Name], bool]:
        """What is to come first of all that is wanted, and whether there is more.

        Groups of all tokens can go piece by piece: each piece is of use with the next one.
        """
        for g, (memory, group) in enumerate(zip(self._memories, self._groups, strict=True)):
            most = memory.host.n_slots // FETCHING_SHARE
            if group.keeps_all and len(of_group := [name for name in wanted if name[0] == g]) > most:
                return of_group[:most], True
        return wanted, False

    def _slots(self, wanted: list[Name]) -> tuple[list[int], list[Name]]:
        """Slots for all blocks that are wanted; fewer, and for the first ones, only where a part of them is of use too."""
        counts = [sum(h == g for h, _ in wanted) for g in range(len(self._groups))]
        if len(self._groups) > 1 or not self._groups[0].keeps_all:
            for memory, n in zip(self._memories, counts, strict=True):
                if n > min(memory.host.n_available, max(1, memory.host.n_slots // FETCHING_SHARE)):
                    return [], []
        slots = [slot for memory, n in zip(self._memories, counts, strict=True) for slot in memory.host.reserve(n)]
        return slots, wanted[: len(slots)]

    def _fetched(self, seq: Answer, wanted: list[Name], slots: list[int], is_limited: bool, n_loaded: int) -> None:
        for i, ((g, key), slot) in enumerate(zip(wanted, slots, strict=True)):
            self._memories[g].host.put(slot, key if i < n_loaded else None)
            self._arriving.pop((g, key), None)
        if self._fetching.pop(seq, None) is not None:
            self._brought[seq] = self._brought.get(seq, 0) + n_loaded
            if is_limited and n_loaded == len(wanted):
                self._unfinished.add(seq)
        self._starved = False
        self.n_fetched += n_loaded

    def forget(self, seq: Answer) -> None:
        """This sequence waits no longer; what was asked for still comes."""
        self._fetching.pop(seq, None)
        self._brought.pop(seq, None)
        self._unfinished.discard(seq)

    def take_brought(self, seq: Answer) -> int:
        """How many blocks the connector brought for a sequence that is admitted now."""
        return self._brought.pop(seq, 0)

    def holdings(self) -> Holdings:
        return self._connector.holdings()

    def keep(self, seq: Answer) -> None:
        """The connector is to have what is worth it of a sequence that ends, in time."""
        if not self.keeps or not (n := self._n_worth_keeping(seq)):
            return
        for g, of_group in enumerate(self._worth_keeping(seq, n)):
            n_there = self._connector.match([_outer((g, key)) for key in of_group])
            self.hand_over([(g, key) for key in of_group[n_there:]])

    def _n_worth_keeping(self, seq: Answer) -> int:
        """Leading blocks of tokens that a connector is to have."""
        n, find = seq.n_published, self._memories[0].pool.find
        if n * self._block_size >= self.kept_tokens:
            return n
        found = (find(key) for key in seq.block_keys[:n])
        n_again = next((i for i, block in enumerate(found) if block is None or not block.reused), n)
        return n_again if n_again * self._block_size >= self.kept_again_tokens else 0

    def _worth_keeping(self, seq: Answer, n_blocks: int) -> list[list[bytes]]:
        """Of the first n_blocks, keys of each group that let a prompt go on from where this one, or its answer, ended, or a state
        was kept."""
        ends = {seq.n_prompt // self._block_size, n_blocks} - {0}
        ends |= {border // self._block_size for border in seq.borders}
        kept = []
        for group in self._groups:
            chosen = {i for end in ends if end <= n_blocks for i in needed(group, end, self._block_size)}
            kept.append([seq.block_keys[i] for i in sorted(chosen)])
        return kept

    def hand_over(self, names: Sequence[Name]) -> int:
        """The connector is to have these blocks; they were read, or are lost, once n_settled is at least what is returned."""
        n_before = len(self._to_store)
        self._to_store |= dict.fromkeys(names)
        self._n_asked += len(self._to_store) - n_before
        return self._n_asked

    @property
    def n_settled(self) -> int:
        """Of the blocks that the connector was ever to have, those of which nothing more will come."""
        return self._n_asked - len(self._to_store) - sum(self._n_given)

    def clear(self) -> None:
        """Forget what the connector has, and what it was to have."""
        self._to_store = {}
        self._connector.clear()

    def prepare(self, *, idle: bool) -> list[list[tuple[int, int]]]:
        """Hold copies in host memory of the next blocks to be stored; for each group (block, slot) of those yet to be made."""
        copies: list[list[tuple[int, int]]] = [[] for _ in self._memories]
        if not self._to_store:
            self._has_more = False
            return copies
        is_urgent = idle or not self.keeps
        n_bytes = STORED_BYTES_IDLE if is_urgent else STORED_BYTES
        while n_bytes > 0 and (name := self._next_to_store(is_urgent=is_urgent)) is not None:
            g, key = name
            memory, block_bytes = self._memories[g], self._groups[g].block_bytes
            if block_bytes > STORED_BUSY_MOST:
                self._large_s = time.monotonic()
            if key in memory.host:
                self._storing.append((name, memory.host.hold(key), True))
                self._n_given[g] += 1
            elif (block := memory.pool.find(key)) is not None:
                slots = memory.host.reserve(1)
                if not slots:
                    self._starved, self._has_more = idle, False
                    return copies
                copies[g].append((block.id, slots[0]))
                self._storing.append((name, slots[0], False))
                self._n_given[g] += 1
            del self._to_store[name]
            n_bytes -= block_bytes
        self._has_more = not self._starved and self._next_to_store(is_urgent=is_urgent) is not None
        return copies

    def _next_to_store(self, *, is_urgent: bool) -> Name | None:
        """The first one that may go now. What is handed over goes in its order, for somebody counts what has gone."""
        large_may_go = is_urgent or time.monotonic() - self._large_s > LARGE_EVERY_S
        may_go = [
            self._n_given[g] < self._most_given[g] and (large_may_go or group.block_bytes <= STORED_BUSY_MOST)
            for g, group in enumerate(self._groups)
        ]
        if not self.keeps:
            return next((name for name in itertools.islice(self._to_store, 1) if may_go[name[0]]), None)
        return next((name for name in self._to_store if may_go[name[0]]), None) if any(may_go) else None

    def submit(self) -> None:
        """The copies are made: the connector may read them, many at once or what is left."""
        if not self._storing or (self._has_more and len(self._storing) < STORED_TOGETHER):
            return
        given, self._storing = self._storing, []
        self.n_stored += len(given)
        keys, slots = [_outer(name) for name, _, _ in given], [slot for _, slot, _ in given]
        self._connector.store(keys, slots, lambda: self._post(lambda: self._stored(given)))

    def _stored(self, given: list[tuple[Name, int, bool]]) -> None:
        self._starved = False
        for (g, _), slot, found in given:
            self._n_given[g] -= 1
            if found:
                self._memories[g].host.let_go(slot)
            else:
                self._memories[g].host.put(slot, None)


def _outer(name: Name) -> bytes:
    """The key by which a connector knows a block: within the engine each group has an index of its own."""
    g, key = name
    return key if g == 0 else hashlib.sha256(key + bytes([g])).digest()
