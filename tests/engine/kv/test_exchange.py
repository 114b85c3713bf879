"""Blocks to and from a connector that takes its time: what it reads stays as it is, what it fills nobody finds too early."""

from __future__ import annotations

import time

from engine.kv.manager import KVManager
from engine.types import Sequence
from tests.engine.fake_connector import FakeConnector
from tests.engine.fake_runner import FakeRunner
from tests.engine.kv.test_manager import admit, compute, sequence

BLOCK = 4


class World:
    """A manager over a fake runner's memory, whose plans are carried out at once."""

    def __init__(self, n_blocks: int = 6, n_host_blocks: int = 32) -> None:
        self.runner = FakeRunner(n_blocks, BLOCK, 64, n_host_blocks=n_host_blocks)
        self.connector = FakeConnector(self.runner)
        self.kv = KVManager(
            n_blocks, BLOCK, enable_caching=True, extras={}, n_host_blocks=n_host_blocks, connector=self.connector
        )
        self.kv.kept_tokens = BLOCK

    def compute(self, seq: Sequence) -> None:
        """Its tokens become the content of its blocks."""
        for i, token_id in enumerate(seq.token_ids):
            self.runner.slots[seq.block_ids[i // BLOCK] * BLOCK + i % BLOCK] = token_id
        compute(self.kv, seq)

    def plan(self, *, idle: bool = True) -> None:
        self.runner.move(self.kv.finish_plan(idle=idle))
        self.kv.exchange.submit()

    def content(self, seq: Sequence) -> list[int | None]:
        slots = [block_id * BLOCK + i for block_id in seq.block_ids for i in range(BLOCK)]
        return [self.runner.slots[slot] for slot in slots][: seq.n_computed]

    def run(self, seq: Sequence) -> None:
        """From admission to its end."""
        admit(self.kv, seq)
        self.plan()
        self.compute(seq)
        self.kv.forget(seq)


def known_to_the_connector(world: World, seq: Sequence) -> None:
    """Only the connector has its blocks."""
    world.run(seq)
    while world.kv.exchange.has_stores or world.connector.orders:
        world.plan()
        while world.connector.orders:
            world.connector.happen()
    kept = dict(world.connector.kept)
    world.kv.evict_cached()
    world.connector.kept = kept
    assert len(world.connector.kept) == len(seq.token_ids) // BLOCK


def test_what_ended_is_given_to_the_connector_root_first() -> None:
    world, seq = World(), sequence(10)
    world.run(seq)
    assert world.kv.exchange.has_stores and not world.connector.orders
    world.plan()
    assert not world.kv.exchange.has_stores
    world.connector.happen()
    assert list(world.connector.kept.values()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert world.kv.exchange.n_stored == 2
    world.kv.host.check()


def test_what_it_has_is_not_given_again() -> None:
    world = World()
    known_to_the_connector(world, sequence(10))
    world.run(sequence(10))
    world.plan()
    assert not world.connector.orders


def test_a_copy_stays_until_the_connector_has_read_it() -> None:
    world = World(n_host_blocks=16)
    world.run(sequence(9))
    world.plan()
    for i in range(8):  # others want its slots
        world.run(sequence(20, first=100 * (i + 1), uid=i + 1))
        world.kv.exchange._to_store.clear()
        world.plan()
    world.kv.pool.evict_cached()
    world.kv.host.clear()  # even when the cache is emptied
    world.connector.happen()
    assert list(world.connector.kept.values()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    world.kv.host.check()
    assert world.kv.host.store(b"free again") is not None


def test_a_sequence_waits_for_what_the_connector_brings_and_then_has_it() -> None:
    world = World()
    known_to_the_connector(world, sequence(10))
    seq = sequence(10)
    assert world.kv.fetch(seq, world.kv.match(seq)) and world.kv.is_fetching
    assert world.kv.match(seq) == [] and world.kv.waits(seq), "not there yet"
    world.connector.happen()
    assert not world.kv.waits(seq) and not world.kv.is_fetching
    assert admit(world.kv, seq) == 8
    world.plan()
    assert world.content(seq) == list(range(8)) and world.kv.exchange.n_fetched == 2
    world.kv.check([seq])


def test_half_of_what_was_asked_for_is_half_a_hit_and_the_rest_is_computed() -> None:
    world = World()
    known_to_the_connector(world, sequence(14))
    seq = sequence(14)
    assert world.kv.fetch(seq, [])
    world.connector.happen(most=1)
    hits = world.kv.match(seq)
    assert len(hits) == 1 and not world.kv.fetch(seq, hits), "it is asked once"
    assert admit(world.kv, seq) == 4
    world.plan()
    assert world.content(seq) == list(range(4))
    world.kv.check([seq])


def test_two_that_begin_alike_wait_for_one_load() -> None:
    world = World()
    known_to_the_connector(world, sequence(10))
    first, second = sequence(10), sequence(9, uid=1)
    assert world.kv.fetch(first, []) and world.kv.fetch(second, [])
    assert len(world.connector.orders) == 1
    world.connector.happen()
    assert len(world.kv.match(second)) == 2 and not world.kv.fetch(second, world.kv.match(second))


def test_what_was_asked_for_a_sequence_that_left_is_there_for_the_next() -> None:
    world = World()
    known_to_the_connector(world, sequence(10))
    gone = sequence(10)
    assert world.kv.fetch(gone, [])
    other = sequence(9, uid=2)
    assert world.kv.fetch(other, []) and not world.kv.waits(other), "it waits for the same blocks"
    world.kv.forget(gone)
    assert world.kv.is_fetching and world.kv.fetch(other, [])
    world.connector.happen()
    assert len(world.kv.match(sequence(10, uid=1))) == 2
    world.kv.check([])


def test_a_prefix_larger_than_host_memory_is_fetched_in_part() -> None:
    world = World(n_blocks=12, n_host_blocks=8)
    known_to_the_connector(world, sequence(34))
    seq = sequence(34)
    assert world.kv.fetch(seq, [])
    world.connector.happen()
    assert len(world.kv.match(seq)) == 4, "half of the slots"
    assert admit(world.kv, seq) == 16


def test_a_short_prefix_is_not_worth_it() -> None:
    world = World()
    world.kv.kept_tokens = 3 * BLOCK
    world.run(sequence(10))
    assert not world.kv.exchange.has_stores
    world.run(sequence(13))
    assert world.kv.exchange.has_stores


def test_a_connector_that_does_not_answer_is_a_miss_after_a_while() -> None:
    world = World()
    known_to_the_connector(world, sequence(10))
    world.kv.exchange.fetch_s = 0.0
    seq, other = sequence(10), sequence(9, uid=1)
    assert world.kv.fetch(seq, [])
    time.sleep(0.001)
    assert not world.kv.waits(seq) and not world.kv.fetch(seq, []) and not world.kv.fetch(other, [])
    assert not world.kv.is_fetching and admit(world.kv, seq) == 0
    world.connector.happen()  # late
    world.kv.check([seq])


def test_what_is_fetched_does_not_push_out_what_it_continues() -> None:
    world = World(n_blocks=9, n_host_blocks=4)
    known_to_the_connector(world, sequence(18))
    for key in world.kv.keys(sequence(8)):
        assert world.kv.host.store(key) is not None
    for i in range(2):  # more recent ones, of others
        world.kv.host.store(b"other %d" % i)
    world.kv.host.release_pins()
    seq = sequence(18)
    hits = world.kv.match(seq)
    assert len(hits) == 2 and world.kv.fetch(seq, hits)
    world.connector.happen()
    assert len(world.kv.match(seq)) == 4


def test_no_more_waits_for_the_connector_than_a_part_of_host_memory() -> None:
    world = World(n_blocks=40, n_host_blocks=16)
    for i in range(4):
        world.run(sequence(33, first=100 * i, uid=i))
    for _ in range(10):
        world.plan()
    assert not world.kv.exchange.has_stores and len(world.kv.exchange._to_store) == 4 * 8 - 2, "two blocks of sixteen slots"
    while world.connector.orders:
        world.connector.happen()
        world.plan()
    assert len(world.connector.kept) == 4 * 8


def test_emptying_the_cache_empties_the_connector_too() -> None:
    world = World()
    world.run(sequence(10))
    world.plan()
    world.connector.happen()
    assert world.connector.kept
    world.kv.evict_cached()
    assert not world.connector.kept and not world.kv.exchange.has_stores


def test_who_finds_no_slot_waits_for_the_connector_and_does_not_try_for_ever() -> None:
    world = World(n_blocks=9, n_host_blocks=8)
    world.run(sequence(10))
    taken = world.kv.host.reserve(8)
    world.plan(idle=True)
    assert world.kv.exchange.has_rest and not world.kv.exchange.has_stores
    for slot in taken:
        world.kv.host.put(slot, None)
    world.kv.exchange._stored([])
    assert world.kv.exchange.has_stores
