"""Shared memory and a disk as connectors, alone and together, with real threads, files and memory."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.kv.tiers.connector import Connector
from engine.kv.tiers.connectors import Connectors
from engine.kv.tiers.disk import DiskStore
from engine.kv.tiers.disk_tier import DiskTier
from engine.kv.tiers.shared import SharedStore
from engine.kv.tiers.shared_folder import SharedFolder
from engine.kv.tiers.shared_tier import SharedTier
from tests.engine.kv.tiers.test_shared import files, key

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is handed over on Windows")
SIZE = 1000
KIND = "a" * 16


class World:
    """A giver, a taker and a disk over one host memory, whose slot i holds block i of the test."""

    def __init__(self, memory: Path, disk: Path) -> None:
        self.memory = memory
        self.slots = [bytearray(bytes([i]) * SIZE) for i in range(40)]
        self.giver, self.taker = self.side(hands_over=True), self.side(hands_over=False)
        self.disk = DiskTier(DiskStore(disk, "a", 1 << 20), self.buffers)
        self.open: list[Connector] = [self.giver, self.taker, self.disk]

    def side(self, *, hands_over: bool, lease_s: float = 60.0, most: int = 1 << 20) -> SharedTier:
        folder = SharedFolder(self.memory)
        return SharedTier(folder, SharedStore(folder.kind(KIND), most, lease_s), self.buffers, hands_over=hands_over)

    def buffers(self, slot: int) -> list[memoryview]:
        whole = memoryview(self.slots[slot])
        return [whole[:300], whole[300:]]

    def give(self, connector: Connector, *numbers: int) -> None:
        done: queue.SimpleQueue[bool] = queue.SimpleQueue()
        connector.store([key(i) for i in numbers], list(numbers), lambda: done.put(True))
        assert done.get(timeout=10)

    def take(self, connector: Connector, *numbers: int) -> int:
        """How many of these blocks come, into slots 20 and following; what comes has to be right."""
        done: queue.SimpleQueue[int] = queue.SimpleQueue()
        for i in numbers:
            self.slots[20 + i][:] = bytes(SIZE)
        connector.load([key(i) for i in numbers], [20 + i for i in numbers], done.put)
        n = done.get(timeout=10)
        assert all(self.slots[20 + i] == bytes([i]) * SIZE for i in numbers[:n])
        return n

    def until_taken(self, n_left: int = 0) -> None:
        deadline = time.monotonic() + 10
        while len(list(self.memory.glob("*/*/*.kv"))) > n_left:
            assert time.monotonic() < deadline
            time.sleep(0.002)


def match(connector: Connector, *numbers: int) -> int:
    return connector.match([key(i) for i in numbers])


@pytest.fixture
def world(memory: Path, tmp_path: Path) -> Iterator[World]:
    world = World(memory, tmp_path / "disk")
    yield world
    for connector in world.open:
        connector.close()
    assert files(memory) == [] and list(memory.iterdir()) == [], "something was left in shared memory"


def test_what_one_side_hands_over_the_other_takes_once(world: World) -> None:
    world.give(world.giver, 1, 2, 3)
    assert match(world.taker, 1, 2, 3, 4) == 3 and match(world.taker, 4, 1) == 0
    assert match(world.giver, 1) == 0, "who hands over looks in its own cache"
    assert world.take(world.taker, 1, 2, 3, 4) == 3
    world.until_taken()
    assert match(world.taker, 1) == 0
    world.give(world.giver, 1)
    assert match(world.taker, 1) == 1


def test_who_takes_stores_nothing_there(world: World) -> None:
    world.give(world.taker, 1)
    assert match(world.taker, 1) == 0


def test_a_load_ends_where_a_block_is_missing_and_leaves_what_comes_behind(world: World) -> None:
    world.give(world.giver, 1, 2, 4)
    assert world.take(world.taker, 1, 2, 3, 4) == 2
    world.until_taken(1)
    assert match(world.taker, 4) == 1


def test_an_idle_side_returns_what_nobody_took(world: World) -> None:
    sweeper = world.side(hands_over=False, lease_s=0.1)
    world.open.append(sweeper)
    world.give(world.giver, 1, 2)
    world.until_taken()


def test_who_asks_for_a_block_again_and_again_keeps_it(world: World) -> None:
    sweeper = world.side(hands_over=False, lease_s=0.2)
    world.open.append(sweeper)
    world.give(world.giver, 1, 2)
    for _ in range(25):
        assert match(world.taker, 1) == 1
        time.sleep(0.02)
    assert match(world.taker, 1, 2) == 1, "the other one's lease has ended"


def test_emptying_it_removes_what_is_on_its_way(world: World) -> None:
    world.give(world.giver, 1, 2)
    world.taker.clear()
    world.until_taken()


def test_a_prefix_in_pieces_is_loaded_from_where_each_piece_is(world: World) -> None:
    both = Connectors(world.taker, world.disk)
    world.give(world.disk, 0, 1, 2)
    world.give(world.giver, 2, 3, 4)
    world.give(world.disk, 5)
    assert match(both, *range(8)) == 6 and match(world.taker, *range(8)) == 0
    assert world.take(both, *range(8)) == 6
    world.until_taken(1)
    assert match(both, *range(8)) == 3, "the disk keeps what it has"


@pytest.mark.parametrize("lost", [0, 2, 3, 4])
def test_a_piece_that_is_lost_meanwhile_ends_the_prefix_there(lost: int, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Connectors(world.taker, world.disk)
    world.give(world.disk, 0, 1, 2)
    world.give(world.giver, 3, 4)
    for store in (world.taker.shared, world.disk.disk):
        real = store.read
        monkeypatch.setattr(store, "read", lambda k, buffers, real=real: k != key(lost) and real(k, buffers))
    assert world.take(both, *range(5)) == lost


def test_what_is_stored_goes_to_all_and_is_done_once_all_have_read_it(world: World) -> None:
    both = Connectors(world.taker, world.disk)
    world.give(both, 1, 2)
    assert match(world.disk, 1, 2) == 2 and match(both, 1, 2) == 2 and match(world.taker, 1) == 0
    assert match(Connectors(world.taker), 1) == 0 and world.take(Connectors(world.taker), 1) == 0
    both.clear()
    deadline = time.monotonic() + 10
    while match(both, 1):
        assert time.monotonic() < deadline
        time.sleep(0.002)
