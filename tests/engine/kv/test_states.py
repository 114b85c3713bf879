"""Where a prompt's state is kept."""

from __future__ import annotations

import random

from engine.kv.states import INTERVAL_TOKENS, TURNS, borders

END = 9


def test_the_last_block_before_the_end_is_kept_so_that_the_same_prompt_is_found() -> None:
    assert borders([0] * 50, 50, (), 16, 100) == (48,)
    assert borders([0] * 49, 49, (), 16, 100) == (48,)
    assert borders([0] * 48, 48, (), 16, 100) == (32,), "one token stays to be computed"
    assert borders([0] * 16, 16, (), 16, 100) == ()


def test_ends_of_turns_are_kept_the_first_and_the_last_ones() -> None:
    tokens = [0] * 400
    for i in (39, 99, 149, 199, 249, 299):
        tokens[i] = END
    assert borders(tokens, 400, {END}, 16, 100) == (32, 192, 240, 288, 384)
    assert TURNS == 3


def test_a_long_prompt_is_kept_at_intervals_which_grow_where_there_is_little_room() -> None:
    n = 20 * INTERVAL_TOKENS + 5
    assert borders([0] * n, n, (), 16, 100) == tuple(INTERVAL_TOKENS * i for i in range(1, 21))
    few = borders([0] * n, n, (), 16, 7)
    assert few == tuple(4 * INTERVAL_TOKENS * i for i in range(1, 6))


def test_borders_are_ends_of_blocks_within_the_prompt_and_not_many_more_than_there_is_room_for() -> None:
    rng = random.Random(0)
    for _ in range(300):
        n, size, most = rng.randint(1, 9000), rng.choice((1, 4, 16, 48, 128)), rng.randint(0, 30)
        tokens = [END if rng.random() < 0.01 else 0 for _ in range(n)]
        found = borders(tokens, n, {END}, size, most)
        assert list(found) == sorted(set(found)) and all(border % size == 0 and 0 < border < n for border in found)
        assert len(found) <= most + TURNS + 2
