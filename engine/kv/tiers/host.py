"""HostTier: which copies of blocks are in host memory; the least recently used one makes room. Torch-free, as BlockPool is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator


class HostTier:
    """Slots of host memory by block key, oldest first. Not thread-safe: only the engine thread touches it.

    What a plan in the making reads or writes is pinned until `release_pins`; what a connector reads is held until it is let go,
    and what it fills is reserved, and found by nobody, until it is put in.
    """

    def __init__(self, n_slots: int, first: int = 0) -> None:
        """Its slots have the numbers first .. first + n_slots."""
        self.n_slots = n_slots
        self.n_evicted = 0
        self._slots: dict[bytes, int] = {}
        self._numbers = range(first, first + n_slots)
        self._free = list(reversed(self._numbers))
        self._pinned: set[int] = set()
        self._held: Counter[int] = Counter()
        self._dropped: set[int] = set()
        """Slots whose key is gone while somebody needs their content."""
        self.reserved: set[int] = set()

    @property
    def n_used(self) -> int:
        return len(self._slots)

    def __contains__(self, key: bytes) -> bool:
        return key in self._slots

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._slots)

    def store(self, key: bytes) -> int | None:
        """The slot to copy a block into; None where a copy is there already, or no slot can be had."""
        if self.refresh(key) is not None:
            return None
        slot = self._take()
        if slot is not None:
            self._slots[key] = slot
            self._pinned.add(slot)
        return slot

    def refresh(self, key: bytes) -> int | None:
        """The slot of a copy, which becomes the most recent one; None where there is none."""
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._slots[key] = slot
        return slot

    def read(self, key: bytes) -> int:
        """The slot to copy from, which becomes the most recent one."""
        slot = self.refresh(key)
        assert slot is not None
        self._pinned.add(slot)
        return slot

    def hold(self, key: bytes) -> int:
        """The slot of a copy, which stays as it is until `let_go`."""
        slot = self._slots[key]
        self._held[slot] += 1
        return slot

    def let_go(self, slot: int) -> None:
        self._held[slot] -= 1
        if not self._held[slot]:
            del self._held[slot]
            self._free_dropped()

    def reserve(self, n: int) -> list[int]:
        """Up to n slots to be filled, which nobody finds yet."""
        slots = []
        while len(slots) < n and (slot := self._take()) is not None:
            slots.append(slot)
        self.reserved |= set(slots)
        return slots

    @property
    def n_available(self) -> int:
        """Slots that could be reserved now."""
        return len(self._free) + sum(not self._is_needed(slot) for slot in self._slots.values())

    def put(self, slot: int, key: bytes | None) -> None:
        """A reserved slot holds this block now, or nothing of use."""
        self.reserved.remove(slot)
        if key is None or key in self._slots:
            self._free.append(slot)
        else:
            self._slots[key] = slot

    def drop(self, key: bytes) -> None:
        """Forget a copy, if it is there."""
        slot = self._slots.pop(key, None)
        if slot is not None:
            self._dropped.add(slot)
            self._free_dropped()

    def clear(self) -> int:
        """Forget all copies; returns how many."""
        n = len(self._slots)
        for key in list(self._slots):
            self.drop(key)
        self.n_evicted += n
        return n

    def release_pins(self) -> None:
        """The plan is complete."""
        self._pinned.clear()
        self._free_dropped()

    def _take(self) -> int | None:
        if not self._free:
            oldest = next((key for key, slot in self._slots.items() if not self._is_needed(slot)), None)
            if oldest is None:
                return None
            self.drop(oldest)
            self.n_evicted += 1
        return self._free.pop()

    def _is_needed(self, slot: int) -> bool:
        return slot in self._pinned or slot in self._held

    def _free_dropped(self) -> None:
        if self._dropped:
            idle = [slot for slot in self._dropped if not self._is_needed(slot)]
            self._dropped.difference_update(idle)
            self._free += idle

    def check(self) -> None:
        """Assert that no plan is in the making, and that each slot is in one state."""
        assert not self._pinned and self._dropped <= set(self._held)
        everything = [*self._slots.values(), *self._free, *self._dropped, *self.reserved]
        assert sorted(everything) == list(self._numbers), "host slots lost or used twice"
