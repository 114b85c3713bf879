"""Blocks to and from a connector that takes its time: what it reads stays as it is, what it fills nobody finds too early."""

from __future__ import annotations

import time

import pytest

from engine.kv import laws
from engine.kv.groups import KVGroup
from engine.kv.manager import KVManager, Match
from engine.kv.tiers import exchange
from engine.types import Sequence
from tests.engine.fake_connector import FakeConnector
from tests.engine.fake_runner import FakeRunner
from tests.engine.kv.test_manager import admit, compute, sequence

BLOCK = 4
NOTHING = Match(0, ([],))


class World:
    """A manager over a fake runner's memory, whose plans are carried out at once."""

    def __init__(self, n_blocks: int = 6, n_host_blocks: int = 32, groups: tuple[KVGroup, ...] = ()) -> None:
        self.runner = FakeRunner(n_blocks, BLOCK, 64, n_host_blocks=n_host_blocks, groups=groups)
        self.connector = FakeConnector(self.runner)
        self.kv = KVManager(self.runner.kv_groups, BLOCK, enable_caching=True, extras={}, chunk=64, connector=self.connector)
        self.kv.exchange.kept_tokens = BLOCK

    def compute(self, seq: Sequence) -> None:
        """Its tokens become the content of its blocks."""
        for i, token_id in enumerate(seq.token_ids):
            self.runner.blocks[0][seq.tables[0][i // BLOCK]][i % BLOCK] = token_id
        compute(self.kv, seq)

    def plan(self, *, idle: bool = True) -> None:
        self.runner.move(self.kv.finish_plan(idle=idle))
        self.kv.exchange.submit()

    def content(self, seq: Sequence) -> list[int | None]:
        return [token_id for block_id in seq.tables[0] for token_id in self.runner.blocks[0][block_id]][: seq.n_computed]

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
    world.kv.memories[0].host.check()


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
    world.kv.memories[0].pool.evict_cached()
    world.kv.memories[0].host.clear()  # even when the cache is emptied
    world.connector.happen()
    assert list(world.connector.kept.values()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    world.kv.memories[0].host.check()
    assert world.kv.memories[0].host.store(b"free again") is not None


def test_a_sequence_waits_for_what_the_connector_brings_and_then_has_it() -> None:
    world = World()
    known_to_the_connector(world, sequence(10))
    seq = sequence(10)
    assert world.kv.fetch(seq, world.kv.match(seq)) and world.kv.is_fetching
    assert world.kv.match(seq).n_tokens == 0 and world.kv.waits(seq), "not there yet"
    world.connector.happen()
    assert not world.kv.waits(seq) and not world.kv.is_fetching
    assert admit(world.kv, seq) == 8
    world.plan()
    assert world.content(seq) == list(range(8)) and world.kv.exchange.n_fetched == 2
    laws.check(world.kv, [seq])


def test_half_of_what_was_asked_for_is_half_a_hit_and_the_rest_is_computed() -> None:
    world = World()
    known_to_the_connector(world, sequence(14))
    seq = sequence(14)
    assert world.kv.fetch(seq, NOTHING)
    world.connector.happen(most=1)
    hits = world.kv.match(seq)
    assert hits.n_tokens == 4 and not world.kv.fetch(seq, hits), "it is asked once"
    assert admit(world.kv, seq) == 4
    world.plan()
    assert world.content(seq) == list(range(4))
    laws.check(world.kv, [seq])


def test_an_admission_tells_what_the_connector_brought_from_what_was_in_host_memory() -> None:
    world = World(n_blocks=9, n_host_blocks=32)
    known_to_the_connector(world, sequence(18))
    for key in world.kv.keys(sequence(4)):
        assert world.kv.memories[0].host.store(key) is not None
    world.kv.memories[0].host.release_pins()
    seq = sequence(18)
    assert world.kv.fetch(seq, world.kv.match(seq))
    world.connector.happen(most=2)
    match = world.kv.match(seq)
    assert len(match.hits[0]) == 3 and world.kv.admit(seq, match, beside_others=False)
    assert world.kv.from_tiers(seq, match) == (1 * BLOCK, 2 * BLOCK)
    again = sequence(18, uid=1)
    match = world.kv.match(again)
    assert (
        len(match.hits[0]) == 3
        and world.kv.admit(again, match, beside_others=False)
        and world.kv.from_tiers(again, match) == (0, 0)
    ), "they are here now"
    world.plan()


def test_what_was_brought_for_a_sequence_that_is_gone_is_nobodys() -> None:
    world = World()
    known_to_the_connector(world, sequence(10))
    gone, late = sequence(10), sequence(10, uid=1)
    assert world.kv.fetch(gone, NOTHING)
    world.kv.forget(gone)
    world.connector.happen()
    assert not world.kv.exchange._brought
    assert world.kv.fetch(late, world.kv.match(late)) is False
    match = world.kv.match(late)
    assert world.kv.admit(late, match, beside_others=False) and world.kv.from_tiers(late, match) == (8, 0)


def test_two_that_begin_alike_wait_for_one_load() -> None:
    world = World()
    known_to_the_connector(world, sequence(10))
    first, second = sequence(10), sequence(9, uid=1)
    assert world.kv.fetch(first, NOTHING) and world.kv.fetch(second, NOTHING)
    assert len(world.connector.orders) == 1
    world.connector.happen()
    assert len(world.kv.match(second).hits[0]) == 2 and not world.kv.fetch(second, world.kv.match(second))


def test_what_was_asked_for_a_sequence_that_left_is_there_for_the_next() -> None:
    world = World()
    known_to_the_connector(world, sequence(10))
    gone = sequence(10)
    assert world.kv.fetch(gone, NOTHING)
    other = sequence(9, uid=2)
    assert world.kv.fetch(other, NOTHING) and not world.kv.waits(other), "it waits for the same blocks"
    world.kv.forget(gone)
    assert world.kv.is_fetching and world.kv.fetch(other, NOTHING)
    world.connector.happen()
    assert len(world.kv.match(sequence(10, uid=1)).hits[0]) == 2
    laws.check(world.kv, [])


def test_a_prefix_larger_than_host_memory_is_fetched_in_rounds() -> None:
    world = World(n_blocks=12, n_host_blocks=6)
    known_to_the_connector(world, sequence(34))
    seq, n_rounds = sequence(34), 0
    while world.kv.fetch(seq, world.kv.match(seq)):
        assert world.kv.is_fetching
        if world.connector.orders:
            n_rounds += 1
            world.connector.happen()
        world.plan()
    assert n_rounds == 3, "three of six slots each time"
    assert admit(world.kv, seq) == 32
    assert world.kv.from_tiers(seq, world.kv.match(sequence(34))) == (0, 32)
    world.plan()
    assert world.content(seq) == list(range(32))
    laws.check(world.kv, [seq])


def test_a_round_that_fails_is_the_last_one() -> None:
    world = World(n_blocks=12, n_host_blocks=6)
    known_to_the_connector(world, sequence(34))
    seq = sequence(34)
    assert world.kv.fetch(seq, NOTHING)
    world.connector.happen(most=2)
    match = world.kv.match(seq)
    assert match.n_tokens == 8 and not world.kv.fetch(seq, match)
    assert admit(world.kv, seq) == 8


def given(world: World) -> list[list[int]]:
    """What the connector has once it was given all that it is to have."""
    while world.kv.exchange.has_stores or world.connector.orders:
        world.plan()
        world.connector.close()
    return list(world.connector.kept.values())


def test_a_long_prefix_is_kept_at_once_and_a_shorter_one_as_far_as_it_was_found_again() -> None:
    world = World(n_blocks=12)
    world.kv.exchange.kept_tokens, world.kv.exchange.kept_again_tokens = 5 * BLOCK, 2 * BLOCK
    world.run(sequence(18))
    assert given(world) == [], "asked once"
    other = sequence(10)
    other.token_ids += [77, 78]  # two blocks are the first one's, the third is its own
    world.run(other)
    assert given(world) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    world.run(sequence(20))
    assert given(world) == [list(range(4 * i, 4 * i + 4)) for i in range(5)]


def test_a_short_prefix_is_not_kept_however_often_it_is_found() -> None:
    world = World()
    world.kv.exchange.kept_tokens, world.kv.exchange.kept_again_tokens = 5 * BLOCK, 3 * BLOCK
    for _ in range(3):
        world.run(sequence(10))
    assert given(world) == []


def test_a_connector_that_does_not_answer_is_a_miss_after_a_while() -> None:
    world = World()
    known_to_the_connector(world, sequence(10))
    world.kv.exchange.fetch_s = 0.0
    seq, other = sequence(10), sequence(9, uid=1)
    assert world.kv.fetch(seq, NOTHING)
    time.sleep(0.001)
    assert not world.kv.waits(seq) and not world.kv.fetch(seq, NOTHING) and not world.kv.fetch(other, NOTHING)
    assert not world.kv.is_fetching and admit(world.kv, seq) == 0
    world.connector.happen()  # late
    laws.check(world.kv, [seq])


def test_what_is_fetched_does_not_push_out_what_it_continues() -> None:
    world = World(n_blocks=9, n_host_blocks=4)
    known_to_the_connector(world, sequence(18))
    for key in world.kv.keys(sequence(8)):
        assert world.kv.memories[0].host.store(key) is not None
    for i in range(2):  # more recent ones, of others
        world.kv.memories[0].host.store(b"other %d" % i)
    world.kv.memories[0].host.release_pins()
    seq = sequence(18)
    hits = world.kv.match(seq)
    assert len(hits) == 2 and world.kv.fetch(seq, hits)
    world.connector.happen()
    assert len(world.kv.match(seq).hits[0]) == 4


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
    taken = world.kv.memories[0].host.reserve(8)
    world.plan(idle=True)
    assert world.kv.exchange.has_rest and not world.kv.exchange.has_stores
    for slot in taken:
        world.kv.memories[0].host.put(slot, None)
    world.kv.exchange._stored([])
    assert world.kv.exchange.has_stores


def test_who_hands_over_gives_what_it_is_told_to_and_nothing_that_ended() -> None:
    world, seq = World(), sequence(14)
    world.kv.exchange.keeps = False
    world.run(seq)
    assert not world.kv.exchange.has_rest
    keys = world.kv.keys(sequence(14))
    ticket = world.kv.exchange.hand_over([(0, key) for key in keys[1:]])
    assert world.kv.exchange.hand_over([(0, key) for key in keys[2:]]) == ticket, "they wait already"
    world.plan(idle=False)
    assert world.kv.exchange.n_settled < ticket
    world.connector.happen()
    assert list(world.connector.kept.values()) == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert world.kv.exchange.n_settled == ticket == 2
    world.kv.memories[0].host.check()


def test_what_is_handed_over_and_gone_meanwhile_is_settled_too() -> None:
    world, seq = World(), sequence(10)
    world.kv.exchange.keeps = False
    world.run(seq)
    ticket = world.kv.exchange.hand_over([(0, key) for key in world.kv.keys(seq)])
    world.kv.memories[0].pool.evict_cached()
    world.plan()
    assert world.kv.exchange.n_settled == ticket and not world.connector.orders
    ticket = world.kv.exchange.hand_over([(0, b"x" * 32)])
    world.kv.exchange.clear()
    assert world.kv.exchange.n_settled == ticket


def test_what_need_not_be_computed_is_what_memory_has_and_what_the_connector_could_bring() -> None:
    world = World()
    assert world.kv.n_findable(sequence(14)) == 0
    known_to_the_connector(world, sequence(14))
    assert world.kv.n_findable(sequence(14)) == 12 and world.kv.n_findable(sequence(12)) == 8, "the last token is computed"
    other = sequence(14, uid=1)
    assert world.kv.fetch(other, NOTHING) and world.connector.match(world.kv.keys(other)) == 3
    kept, world.connector.kept = world.connector.kept, {}
    assert world.kv.n_findable(sequence(14)) == 12, "what is on its way counts, although it was taken"
    world.connector.kept = kept
    world.connector.happen(most=0)
    world.connector.lose(world.kv.keys(sequence(14))[2])
    assert world.kv.n_findable(sequence(14)) == 8
    world.run(sequence(5))
    assert world.kv.n_findable(sequence(14)) == 8
    world.connector.kept.clear()
    assert world.kv.n_findable(sequence(14)) == 4


def test_what_comes_home_between_rounds_pushes_out_nothing_of_its_own_prefix() -> None:
    world = World(n_blocks=9, n_host_blocks=6)
    known_to_the_connector(world, sequence(34))
    other = sequence(20, first=500, uid=7)
    assert admit(world.kv, other) == 0, "it leaves four blocks"
    world.plan()
    seq, n_steps = sequence(34), 0
    while world.kv.fetch(seq, world.kv.match(seq)):
        if world.connector.orders:
            world.connector.happen()
        world.plan()
        n_steps += 1
        assert n_steps < 10, "it brings the same blocks again and again"
    assert world.kv.match(seq).n_tokens >= 12


def test_a_fetch_for_which_slots_are_missing_takes_none_from_others() -> None:
    groups = (
        KVGroup(n_blocks=20, n_host_blocks=16),
        KVGroup(n_blocks=20, n_host_blocks=4, window=24),
    )
    world = World(groups=groups)
    for g, key in enumerate((b"a", b"b")):
        world.kv.memories[g].host.store(key)
        world.kv.memories[g].host.release_pins()
    seq = sequence(34)
    keys = world.kv.keys(sequence(34))
    world.connector.kept = {exchange._outer((g, key)): [0] * BLOCK for g in (0, 1) for key in keys}
    assert not world.kv.fetch(seq, world.kv.match(seq)) and seq.fetched
    assert [memory.host.n_used for memory in world.kv.memories] == [1, 1]


def test_a_block_that_is_too_large_beside_answers_holds_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LARGE_EVERY_S", 1e9)
    groups = (
        KVGroup(n_blocks=40, n_host_blocks=32, block_bytes=1 << 10),
        KVGroup(n_blocks=8, n_host_blocks=8, block_bytes=exchange.STORED_BUSY_MOST + 1, recurrent=True),
    )
    world = World(groups=groups)
    world.kv.exchange._large_s = time.monotonic()
    names = [(1, b"state"), *((0, key) for key in world.kv.keys(sequence(20)))]
    for g, key in names:
        world.kv.memories[g].host.store(key)
        world.kv.memories[g].host.release_pins()
    world.kv.exchange.hand_over(names)
    for _ in range(3):
        world.plan(idle=False)
        while world.connector.orders:
            world.connector.happen()
    assert list(world.kv.exchange._to_store) == [(1, b"state")]
    world.plan(idle=True)
    assert not world.kv.exchange.has_rest


@pytest.mark.parametrize("kind", ["window", "state"])
def test_a_large_prefix_comes_in_rounds_and_what_belongs_to_its_end_in_the_last_one(kind: str) -> None:
    other = {"window": {"window": 7}, "state": {"recurrent": True}}[kind]
    groups = (KVGroup(n_blocks=12, n_host_blocks=6), KVGroup(n_blocks=12, n_host_blocks=6, **other))
    world = World(groups=groups)
    keys = world.kv.keys(sequence(34))
    world.connector.kept = {exchange._outer((0, key)): [i] * BLOCK for i, key in enumerate(keys)}
    size = 1 if kind == "state" else BLOCK
    for i in range(8)[-1:] if kind == "state" else range(6, 8):
        world.connector.kept[exchange._outer((1, keys[i]))] = [100 + i] * size
    seq, n_loads = sequence(34), []
    while world.kv.fetch(seq, world.kv.match(seq)):
        if world.connector.orders:
            n_loads.append(world.kv.exchange.n_fetched)
            world.connector.happen()
        world.plan()
    assert n_loads == [0, 3, 6] and world.kv.exchange.n_fetched == 8 + (1 if kind == "state" else 2)
    assert admit(world.kv, seq) == 32
    world.plan()
    assert [world.runner.blocks[0][block_id] for block_id in seq.tables[0][:8]] == [[i] * BLOCK for i in range(8)]
    assert world.runner.blocks[1][seq.tables[1][0 if kind == "state" else 7]] == [107] * size
