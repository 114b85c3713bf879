"""Block maps brought to a given number of places."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from tui.blocks import EMPTY, LEVELS, Place, blocks_per_place, places
from tui.feed.model import CACHED, FREE, SHARED, USED, Run

RUN = st.builds(Run, st.integers(0, 3), st.sampled_from([-1, 1, 2]), st.integers(1, 40))
RUNS = st.lists(RUN, min_size=1, max_size=30)


@given(RUNS)
def test_one_block_a_place_shows_every_block_as_it_is(runs):
    expected = [Place(run.state, run.owner, LEVELS) for run in runs for _ in range(run.count)]
    assert places(runs, 1) == expected


@given(RUNS, st.integers(2, 50))
def test_every_place_speaks_for_its_own_blocks(runs, per_place):
    blocks = [run for run in runs for _ in range(run.count)]
    result = places(runs, per_place)
    assert len(result) == -(-len(blocks) // per_place)
    for number, place in enumerate(result):
        own = blocks[number * per_place : (number + 1) * per_place]
        states = {block.state for block in own}
        assert place.state in states
        assert (place.state in (USED, SHARED)) == bool(states & {USED, SHARED}), "a block in use must not be lost"
        if place.state in (USED, SHARED):
            assert place.owner in {block.owner for block in own if block.state in (USED, SHARED)}
        assert 1 <= place.level <= LEVELS


def test_the_level_tells_how_much_of_a_place_is_in_use():
    assert [place.level for place in places([Run(USED, 1, 1), Run(FREE, -1, 6), Run(USED, 1, 9)], 8)] == [1, 4]


def test_cache_shows_through_emptiness():
    assert places([Run(FREE, -1, 7), Run(CACHED, -1, 1)], 8) == [Place(CACHED, -1, 1)]
    assert places([Run(FREE, -1, 8)], 8) == [EMPTY]


def test_the_owner_of_most_blocks_gives_the_hue():
    assert places([Run(USED, 1, 2), Run(USED, 2, 3), Run(SHARED, 3, 3)], 8)[0] == Place(USED, 2, LEVELS)


@given(st.integers(1, 200_000), st.integers(1, 5_000))
def test_as_few_blocks_a_place_as_fit(n_blocks, n_places):
    per_place = blocks_per_place(n_blocks, n_places)
    assert per_place * n_places >= n_blocks
    assert per_place == 1 or (per_place - 1) * n_places < n_blocks


def test_a_large_pool_costs_its_runs_not_its_blocks():
    runs = [Run(USED, uid, 500_000) for uid in range(200)]
    began = time.perf_counter()
    assert len(places(runs, 100_000)) == 1000
    assert time.perf_counter() - began < 0.1


def test_neighbours_in_unknown_states_are_not_taken_for_free_ones():
    assert places([Run(FREE, -1, 3), Run(9, 5, 1)], 4) == [Place(9, -1, LEVELS)]
