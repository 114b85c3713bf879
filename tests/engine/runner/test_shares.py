"""Blocks of each group of a model, out of one amount of memory."""

from __future__ import annotations

import random

from msgspec import structs

from engine.kv.groups import KVGroup
from engine.runner.shares import KEPT_STATES, LEAST_STATES, WINDOW_SHARE, Shares

ALL = KVGroup(n_blocks=0, block_bytes=1000)
WINDOW = KVGroup(n_blocks=0, block_bytes=5000, window=512)
STATE = KVGroup(n_blocks=0, block_bytes=50_000, recurrent=True)


def shares(*groups: KVGroup, max_num_seqs: int = 8) -> Shares:
    return Shares(groups, block_size=16, max_num_seqs=max_num_seqs, chunk=128)


def n_bytes(groups: tuple[KVGroup, ...], counts: list[int]) -> int:
    return sum(n * group.block_bytes for n, group in zip(counts, groups, strict=True))


def test_one_group_gets_all_up_to_what_sequences_can_use() -> None:
    assert shares(ALL).blocks(100_500, 1600) == [100]
    assert shares(ALL).blocks(1 << 40, 1600) == [8 * 100]
    assert shares(WINDOW).blocks(100 * 5000, 800) == [100]


def test_a_window_gets_a_part_and_never_less_than_two_sequences_need() -> None:
    held = -(-(512 + 128) // 16) + 1
    n_all, n_window = shares(ALL, WINDOW).blocks(10_000_000, 10_000)
    assert n_window == n_all // WINDOW_SHARE and 9_900_000 < n_bytes((ALL, WINDOW), [n_all, n_window]) <= 10_000_000
    n_all, n_window = shares(ALL, WINDOW).blocks(600_000, 1600)
    assert n_window == 2 * held and n_all == 600 - 5 * 2 * held


def test_a_window_shrinks_before_the_sequences_do() -> None:
    held = 2 * (-(-(512 + 128) // 16) + 1)
    room = 400_000 + held * 5000
    assert shares(ALL, WINDOW).blocks(room, 3000) == [360, 360 // WINDOW_SHARE]
    assert shares(ALL, WINDOW).blocks(room, 400 * 16) == [400, held]


def test_states_get_half_at_most_and_no_more_than_answers_and_their_beginnings_use() -> None:
    groups = (ALL, STATE)
    counts = shares(*groups).blocks(2_000_000, 10_000)
    assert counts == [1000, 20]
    assert shares(*groups).blocks(1 << 40, 1600)[1] == 2 * 8 + KEPT_STATES
    assert shares(STATE).blocks(1_000_000, 1600) == [20]
    assert shares(STATE).blocks(1000, 1600) == [LEAST_STATES]


def test_whatever_fits_is_shared_out_within_the_room_and_holds_the_longest_sequence() -> None:
    rng = random.Random(0)
    for _ in range(300):
        groups = tuple(
            structs.replace(group, block_bytes=rng.randint(1, 9999))
            for group in rng.sample([ALL, WINDOW, structs.replace(WINDOW, window=64), STATE], rng.randint(1, 4))
        )
        groups = tuple(sorted(groups, key=lambda group: (group.recurrent, group.window)))
        room = rng.randint(1, 10_000_000)
        one = shares(*groups, max_num_seqs=rng.randint(1, 40))
        window = min(one.window(room), 1 << 20)
        if not window:
            continue
        counts = one.blocks(room, window)
        assert n_bytes(groups, counts) <= room
        for group, n in zip(groups, counts, strict=True):
            assert n >= group.most_held(window, 128, 16)


def test_a_window_that_nobody_asked_for_leaves_half_of_the_room_to_states() -> None:
    one, room = shares(ALL, STATE), 4_000_000
    assert one.window(room) == (room - 40 * STATE.block_bytes) // ALL.block_bytes * 16
    assert one.blocks(room, one.window(room)) == [2000, 40]
    assert one.window(room, for_one=True) == (room - LEAST_STATES * STATE.block_bytes) // ALL.block_bytes * 16
    assert one.blocks(room, one.window(room, for_one=True)) == [3800, LEAST_STATES]


def test_host_memory_has_room_for_the_end_of_a_prefix_in_every_group_or_for_none() -> None:
    groups = (ALL, WINDOW, STATE)
    counts = [1000, 250, 4]
    least = n_bytes(groups, [2, 33, 2])
    assert shares(*groups).host_blocks(least - 1, counts) == [0, 0, 0]
    assert shares(*groups).host_blocks(least, counts) == [2, 33, 2]
    for room in (300_000, 1_000_000, 50_000_000):
        found = shares(*groups).host_blocks(room, counts)
        assert n_bytes(groups, found) <= room and all(n >= m for n, m in zip(found, (2, 33, 2), strict=True))
    assert shares(ALL).host_blocks(10_500, [77]) == [10]
