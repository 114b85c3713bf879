"""How far a prompt is known when groups need different things of it."""

from __future__ import annotations

import random

import pytest

from engine.kv.groups import KVGroup
from engine.kv.match import deepest, needed

SIZE = 4
ALL = KVGroup(n_blocks=1)
STATE = KVGroup(n_blocks=1, recurrent=True)


def window(n: int) -> KVGroup:
    return KVGroup(n_blocks=1, window=n)


def depth(groups: list[KVGroup], n_blocks: int, known: list[set[int]]) -> int:
    return deepest(groups, n_blocks, SIZE, lambda g, i: i in known[g])


def test_a_group_of_all_tokens_is_known_up_to_its_first_gap() -> None:
    assert depth([ALL], 9, [{0, 1, 2, 4, 5}]) == 3
    assert depth([ALL], 2, [{0, 1, 2}]) == 2
    assert depth([ALL], 3, [{1, 2}]) == 0


def test_a_window_needs_only_the_blocks_that_it_reaches() -> None:
    assert depth([window(5)], 9, [{7, 8}]) == 9, "position 36 sees 32 to 36"
    assert depth([window(6)], 9, [{7, 8}]) == 9
    assert depth([window(6)], 9, [{8}]) == 0, "it sees 31 too"
    assert depth([window(6)], 9, [{3, 4, 8}]) == 5
    assert depth([window(100)], 3, [{0, 1, 2}]) == 3
    assert depth([window(100)], 3, [{1, 2}]) == 0


def test_a_state_is_known_where_it_was_kept() -> None:
    assert depth([STATE], 9, [{2, 5}]) == 6
    assert depth([STATE], 5, [{2, 5}]) == 3
    assert depth([STATE], 2, [{2, 5}]) == 0


def test_the_deepest_border_is_one_to_which_every_group_agrees() -> None:
    everything = set(range(20))
    assert depth([ALL, window(6), STATE], 20, [everything, {3, 4, 8, 9, 10}, {4, 6, 10}]) == 11
    assert depth([ALL, window(6), STATE], 20, [everything, {3, 4, 8, 9, 10}, {4, 6}]) == 5, "the window goes back once more"
    assert depth([ALL, window(6), STATE], 20, [set(range(10)), {3, 4, 8, 9, 10}, {4, 6, 10}]) == 5


@pytest.mark.parametrize("seed", range(200))
def test_it_is_what_trying_every_border_finds(seed: int) -> None:
    rng = random.Random(seed)
    groups = rng.sample([ALL, window(3), window(9), STATE], rng.randint(1, 4))
    known = [{i for i in range(12) if rng.random() < 0.8} for _ in groups]
    tried = [n for n in range(13) if all(set(needed(group, n, SIZE)) <= of for group, of in zip(groups, known, strict=True))]
    assert depth(groups, 12, known) == max(tried)


def test_what_is_needed_after_a_border_is_what_a_query_there_sees() -> None:
    for w in range(1, 20):
        for n in range(1, 8):
            seen = {p // SIZE for p in range(max(0, n * SIZE - w + 1), n * SIZE)}
            assert set(needed(window(w), n, SIZE)) == seen
