"""Tables on toy sizes, with exact block ids: match, admit, reserve, publish, fork, swap, free."""

from __future__ import annotations

from engine.kv import laws
from engine.kv.blocks import BlockPool
from engine.kv.groups import KVGroup
from engine.kv.manager import KVManager, Match
from engine.kv.tiers.host import HostTier
from engine.types import Moves, Request, SamplingParams, Sequence


def manager(n_blocks: int = 10, n_host_blocks: int = 0, **knobs) -> KVManager:
    group = KVGroup(n_blocks=n_blocks, n_host_blocks=n_host_blocks)
    return KVManager((group,), 4, **{"enable_caching": True, "extras": {"model": "m"}, "chunk": 64, **knobs})


def pool(kv: KVManager, g: int = 0) -> BlockPool:
    return kv.memories[g].pool


def host(kv: KVManager, g: int = 0) -> HostTier:
    return kv.memories[g].host


def sequence(n_tokens: int, *, first: int = 0, salt: str = "", uid: int = 0) -> Sequence:
    tokens = list(range(first, first + n_tokens))
    request = Request("", tokens, SamplingParams(), cache_salt=salt, uid=uid)
    return Sequence(request, 0, list(tokens), n_tokens, 0, 100, frozenset(), None)


def finish(kv: KVManager) -> Moves:
    (moves,) = kv.finish_plan()
    return moves


def compute(kv: KVManager, seq: Sequence) -> None:
    seq.n_computed = len(seq.token_ids)
    kv.publish(seq)


def decode(kv: KVManager, seq: Sequence) -> None:
    """Admit it and leave it as a decode does: its prompt computed, and one token whose KV is to be computed."""
    admit(kv, seq)
    seq.n_computed = len(seq.token_ids)
    seq.token_ids.append(7)
    kv.publish(seq)


def admit(kv: KVManager, seq: Sequence) -> int:
    assert kv.admit(seq, kv.match(seq), beside_others=False)
    return seq.n_computed


def test_a_prefix_is_found_after_its_owner_left_and_the_last_token_is_always_computed() -> None:
    kv = manager()
    owner = sequence(8)
    assert admit(kv, owner) == 0 and owner.tables[0] == [0, 1]
    compute(kv, owner)
    kv.free(owner)
    same = sequence(8)
    assert admit(kv, same) == 4, "a whole hit leaves the last block to be computed"
    assert same.tables[0][0] == 0
    longer = sequence(9)
    assert admit(kv, longer) == 8
    assert pool(kv).blocks[0].refs == 2
    laws.check(kv, [same, longer])


def test_another_salt_shares_nothing() -> None:
    kv = manager()
    owner = sequence(9, salt="alice")
    admit(kv, owner)
    compute(kv, owner)
    assert kv.match(sequence(9, salt="bob")).n_tokens == 0
    assert kv.match(sequence(9)).n_tokens == 0
    assert len(kv.match(sequence(9, salt="alice")).hits[0]) == 2


def test_without_caching_nothing_is_published() -> None:
    kv = manager(enable_caching=False)
    owner = sequence(9)
    admit(kv, owner)
    compute(kv, owner)
    assert not pool(kv).index and kv.match(sequence(9)).n_tokens == 0


def test_only_full_computed_blocks_are_published() -> None:
    kv = manager()
    seq = sequence(11)
    admit(kv, seq)
    seq.n_computed = 7
    kv.publish(seq)
    assert [pool(kv).blocks[i].key is not None for i in seq.tables[0]] == [True, False, False]


def test_admission_changes_nothing_when_room_is_missing() -> None:
    kv = manager(4)
    owner = sequence(8)
    admit(kv, owner)
    compute(kv, owner)
    kv.free(owner)
    big = sequence(13)
    assert kv.match(big).n_tokens and not kv.admit(big, kv.match(big), beside_others=True)
    assert big.tables == [] and big.n_computed == 0 and pool(kv).n_free == 4
    assert kv.admit(big, kv.match(big), beside_others=False)


def test_a_prefix_that_is_being_computed_is_announced_until_it_is_published_or_dropped() -> None:
    kv = manager()
    owner, follower = sequence(9), sequence(10)
    admit(kv, owner)
    assert kv.is_being_computed(follower, kv.match(follower))
    owner.n_computed = 4
    kv.publish(owner)
    assert len(kv.match(follower).hits[0]) == 1 and kv.is_being_computed(follower, kv.match(follower))
    kv.free(owner)
    assert not kv.is_being_computed(follower, kv.match(follower))


def test_equal_blocks_computed_twice_become_one() -> None:
    kv = manager()
    first, second = sequence(9), sequence(9)
    admit(kv, first)
    admit(kv, second)
    compute(kv, first)
    compute(kv, second)
    assert second.tables[0][:2] == first.tables[0][:2] and second.tables[0][2] != first.tables[0][2]
    laws.check(kv, [first, second])


def forked(n_tokens: int) -> tuple[KVManager, Sequence, Sequence]:
    kv = manager()
    parent, child = sequence(n_tokens), sequence(n_tokens)
    admit(kv, parent)
    compute(kv, parent)
    child.n_computed = n_tokens - 1
    kv.fork(parent, child)
    return kv, parent, child


def test_a_fork_takes_no_block_and_copies_the_tail_before_it_writes() -> None:
    kv, parent, child = forked(6)
    assert child.tables[0] == parent.tables[0] == [0, 1] and pool(kv).n_free == 8
    assert kv.reserve(child, 1)
    assert finish(kv).copies == ((1, 2),)
    assert child.tables[0] == [0, 2] and pool(kv).blocks[1].refs == 1
    laws.check(kv, [parent, child])


def test_a_fork_at_a_block_border_copies_the_published_block_and_joins_it_again() -> None:
    kv, parent, child = forked(8)
    assert kv.reserve(child, 1)
    assert finish(kv).copies == ((1, 2),)
    compute(kv, child)
    assert child.tables[0] == parent.tables[0], "the copy computed what the index knows already"
    laws.check(kv, [parent, child])


def test_a_published_block_with_one_holder_is_copied_before_it_is_written() -> None:
    kv, parent, child = forked(8)
    kv.free(parent)
    assert pool(kv).blocks[1].refs == 1
    assert kv.reserve(child, 1)
    assert finish(kv).copies == ((1, 2),)
    assert pool(kv).blocks[1].refs == 0 and pool(kv).find(pool(kv).blocks[1].key) is pool(kv).blocks[1]


def test_a_block_that_is_copied_from_is_no_destination_in_the_same_plan() -> None:
    kv, parent, child = forked(8)
    kv.free(parent)
    kv.reserve(child, 1)
    assert pool(kv).blocks[1].refs == 1, "still held"
    assert 1 not in [block.id for block in pool(kv).allocate(pool(kv).n_free)]


def test_reserve_changes_nothing_when_blocks_run_out() -> None:
    kv = manager(2)
    seq = sequence(8)
    admit(kv, seq)
    compute(kv, seq)
    assert not kv.reserve(seq, 1)
    assert seq.tables[0] == [0, 1]
    laws.check(kv, [seq])


def test_leaves_are_evicted_before_the_roots_they_hang_on() -> None:
    kv = manager(3)
    owner = sequence(12)
    admit(kv, owner)
    compute(kv, owner)
    kv.free(owner)
    pool(kv).release(pool(kv).allocate(1)[0])
    assert len(kv.match(sequence(13)).hits[0]) == 2, "the root and its child are still there"


def test_a_long_prompts_lookup_takes_one_pass() -> None:
    kv = manager(4000)
    owner = sequence(12_000)
    admit(kv, owner)
    compute(kv, owner)
    follower = sequence(12_001)
    assert len(kv.match(follower).hits[0]) == 3000
    keys = follower.block_keys
    assert kv.keys(follower) is keys and len(keys) == 3000


def take_all(kv: KVManager, n_tokens: int, *, uid: int = 9) -> Sequence:
    """Another sequence that takes every free block."""
    other = sequence(n_tokens, first=500, uid=uid)
    assert kv.admit(other, Match(0, ([],)), beside_others=False) and pool(kv).n_free == 0
    return other


def test_a_cached_block_that_is_taken_goes_to_host_memory_and_comes_back_to_who_needs_it() -> None:
    kv = manager(3, n_host_blocks=4)
    owner = sequence(9)
    admit(kv, owner)
    compute(kv, owner)
    kv.free(owner)
    other = take_all(kv, 12)
    moves = finish(kv)
    assert sorted(block for block, _ in moves.demotions) == [0, 1] and moves.promotions == ()
    assert host(kv).n_used == 2 and kv.memories[0].n_demoted == 2
    kv.free(other)
    same = sequence(9)
    match = kv.match(same)
    assert [hit.block for hit in match.hits[0]] == [None, None] and match.n_tokens == 8
    assert kv.admit(same, match, beside_others=False) and same.n_computed == 8 and same.n_published == 2
    where = {slot: block for block, slot in moves.demotions}
    back = finish(kv)
    assert [(where[slot], block) for slot, block in back.promotions] == [(0, same.tables[0][0]), (1, same.tables[0][1])]
    assert kv.match(sequence(9)).hits[0][0].block is not None, "it is on the device again, and others find it there"
    assert host(kv).n_used == 2, "the copies stay, so that leaving again costs nothing"
    kv.free(same)
    take_all(kv, 12)
    assert finish(kv) == Moves()
    host(kv).check()


def test_a_swapped_sequence_comes_back_to_the_token_with_its_last_block_too() -> None:
    kv = manager(3, n_host_blocks=4)
    seq = sequence(10)
    decode(kv, seq)
    kv.swap_out(seq)
    assert seq.tables == [] and seq.put_aside is not None
    assert kv.match(sequence(12)).hits[0] == kv.match(seq).hits[0][:2], "others find the full blocks and not the last one"
    other = take_all(kv, 12)
    assert len(finish(kv).demotions) == 3
    kv.free(other)
    assert admit(kv, seq) == 10 and seq.n_published == 2
    assert len(finish(kv).promotions) == 3 and seq.put_aside is None
    assert kv.reserve(seq, 1) and finish(kv) == Moves(), "the last block is its own again: nobody can find it"
    laws.check(kv, [seq])
    assert host(kv).n_used == 2, "the copy of the last block served its purpose"


def test_a_swapped_sequence_whose_blocks_were_not_taken_moves_nothing() -> None:
    kv = manager(5, n_host_blocks=4)
    seq = sequence(10)
    decode(kv, seq)
    blocks = seq.tables[0]
    kv.swap_out(seq)
    assert admit(kv, seq) == 10 and seq.tables[0] == blocks and finish(kv) == Moves()
    laws.check(kv, [seq])


def test_without_a_cache_a_swapped_sequence_finds_its_own_blocks_and_nobody_else_does() -> None:
    kv = manager(3, n_host_blocks=4, enable_caching=False)
    seq = sequence(10)
    decode(kv, seq)
    kv.swap_out(seq)
    assert kv.match(sequence(11, uid=1)).n_tokens == 0
    other = take_all(kv, 12)
    finish(kv)
    kv.free(other)
    assert admit(kv, seq) == 10
    finish(kv)
    assert not pool(kv).index and host(kv).n_used == 0
    laws.check(kv, [seq])


def test_a_sequence_that_ends_while_it_is_swapped_out_leaves_nothing_of_its_own() -> None:
    kv = manager(4, n_host_blocks=4)
    on_device, in_host = sequence(6, uid=0), sequence(6, first=100, uid=1)
    for seq in (on_device, in_host):
        decode(kv, seq)
    kv.swap_out(in_host)
    kv.swap_out(on_device)
    other = sequence(8, first=500, uid=2)
    assert kv.admit(other, Match(0, ([],)), beside_others=False)
    finish(kv)
    for seq in (on_device, in_host):
        kv.forget(seq)
        assert seq.put_aside is None
    kv.free(other)
    assert len(pool(kv).index) + host(kv).n_used == 2, "one full block of each"
    laws.check(kv, [])


def test_what_is_dropped_to_be_computed_again_takes_no_host_memory_unless_somebody_finds_it() -> None:
    kv = manager(3, n_host_blocks=4)
    seq = sequence(9)
    admit(kv, seq)
    compute(kv, seq)
    kv.drop(seq)
    finder = sequence(6)
    assert admit(kv, finder) == 4
    kv.free(finder)
    take_all(kv, 12)
    finish(kv)
    assert host(kv).n_used == 1


def test_host_slots_that_a_plan_reads_are_not_written_by_it() -> None:
    kv = manager(4, n_host_blocks=2)
    first, second = sequence(9), sequence(8, first=100, uid=1)
    admit(kv, first)
    compute(kv, first)
    kv.free(first)
    other = take_all(kv, 16)
    finish(kv)
    kv.free(other)
    assert admit(kv, second) == 0
    compute(kv, second)
    kv.free(second)  # two cached blocks on the device, two others in a host memory that is full
    assert admit(kv, first) == 8
    moves = finish(kv)
    assert len(moves.promotions) == 2 and moves.demotions == (), "no slot was left for what had to go"
    laws.check(kv, [first])


def test_evicting_the_cache_empties_host_memory_too() -> None:
    kv = manager(3, n_host_blocks=4)
    seq = sequence(9)
    admit(kv, seq)
    compute(kv, seq)
    kv.free(seq)
    kv.free(take_all(kv, 12))
    finish(kv)
    assert kv.evict_cached() == 2 and kv.match(seq).n_tokens == 0 and host(kv).n_used == 0
    laws.check(kv, [])


def test_a_prefix_that_is_pinned_already_costs_nothing_to_pin_again() -> None:
    kv = manager(10)
    first = sequence(17)
    admit(kv, first)
    compute(kv, first)
    assert kv.why_not_pinned(first) is None and kv.pins.pin(first)
    kv.free(first)
    longer, other = sequence(22, uid=1), sequence(12, first=100, uid=2)
    assert kv.why_not_pinned(longer) is None, "five of ten blocks, of which four are pinned"
    assert kv.why_not_pinned(other) == "3 blocks cannot be pinned: 4 are, and at most 5 may be."
    assert kv.pins.unpin(0) == 4
    laws.check(kv, [])
