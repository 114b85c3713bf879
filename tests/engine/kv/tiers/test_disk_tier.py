"""The disk as a connector: several readers fill the slots, and what is promised is what leads without a gap."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest

from engine.kv.tiers.disk_tier import READERS, DiskTier
from tests.engine.kv.tiers.test_disk import PAYLOAD, key, payload, segments, store, write

N = 4 * READERS + 1


class Slots:
    """Host memory for N blocks."""

    def __init__(self) -> None:
        self.memory = [bytearray(PAYLOAD) for _ in range(N)]
        self.broken: set[int] = set()
        self.readers: set[int] = set()

    def buffers(self, slot: int) -> list[memoryview]:
        self.readers.add(threading.get_ident())
        if slot in self.broken:
            raise RuntimeError("this slot is gone")
        return [memoryview(self.memory[slot])]


@pytest.fixture
def slots() -> Slots:
    return Slots()


def load(tier: DiskTier) -> int:
    """How many of N blocks come into the slots of their numbers."""
    loaded: queue.SimpleQueue[int] = queue.SimpleQueue()
    tier.load([key(i) for i in range(N)], range(N), loaded.put)
    n = loaded.get(timeout=10)
    assert loaded.empty()
    return n


def test_several_readers_bring_all_blocks_each_into_its_slot(slots: Slots, tmp_path: Path) -> None:
    disk = store(tmp_path)
    write(disk, *range(N // 2)), write(disk, *range(N // 2, N))
    tier = DiskTier(disk, slots.buffers)
    assert tier.match([key(i) for i in range(N + 1)]) == N
    assert load(tier) == N and len(slots.readers) == READERS
    assert slots.memory == [b"".join(payload(i)) for i in range(N)]
    assert disk.read_bytes == N * PAYLOAD
    tier.close()


@pytest.mark.parametrize("damaged", range(N))
def test_what_leads_without_a_gap_is_there_whichever_block_is_damaged(damaged: int, slots: Slots, tmp_path: Path) -> None:
    disk = store(tmp_path)
    write(disk, *range(N))
    (path,) = segments(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[4096 + damaged * PAYLOAD + 7] ^= 1
    path.write_bytes(raw)
    tier = DiskTier(disk, slots.buffers)
    assert load(tier) == damaged and disk.n_damaged == 1
    n_read = sum(i < damaged or i % READERS != damaged % READERS for i in range(N))
    assert disk.read_bytes == n_read * PAYLOAD, "who missed one goes on to no other"
    assert slots.memory[:damaged] == [b"".join(payload(i)) for i in range(damaged)]
    tier.close()


@pytest.mark.parametrize("broken", [0, 1, N - 1])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_reader_that_fails_is_a_miss_and_the_tier_goes_on(broken: int, slots: Slots, tmp_path: Path) -> None:
    disk = store(tmp_path)
    write(disk, *range(N))
    tier = DiskTier(disk, slots.buffers)
    slots.broken = {broken}
    assert load(tier) == broken
    slots.broken = set()
    assert load(tier) == N
    tier.close()
