"""The run-length block map and its patches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.stats.frames import Patch, Run
from app.stats.runs import diff, encode

BLOCK = st.tuples(st.integers(0, 3), st.sampled_from([-1, 1, 2]))


def expand(runs):
    return [(run.state, run.owner) for run in runs for _ in range(run.count)]


def encoded(blocks):
    return encode(bytes(state for state, _ in blocks), [owner for _, owner in blocks])


@given(st.lists(BLOCK, max_size=60))
def test_encoding_keeps_every_block_and_never_splits_a_run(blocks):
    runs = encoded(blocks)
    assert expand(runs) == blocks
    assert all((a.state, a.owner) != (b.state, b.owner) for a, b in zip(runs, runs[1:], strict=False))


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(*[st.lists(BLOCK, min_size=n, max_size=n)] * 2)))
def test_patches_turn_the_old_map_into_the_new_and_touch_nothing_else(maps):
    old, new = maps
    patches = diff(encoded(old), encoded(new))
    result = list(old)
    for patch in patches:
        result[patch.start : patch.start + patch.count] = [(patch.state, patch.owner)] * patch.count
    assert result == new
    assert sum(patch.count for patch in patches) == sum(a != b for a, b in zip(old, new, strict=True))


def test_neighbouring_changes_to_one_state_are_one_patch():
    assert diff((Run(0, -1, 4), Run(3, -1, 4)), (Run(1, 7, 8),)) == (Patch(0, 8, 1, 7),)


def test_pools_of_different_size_have_no_patches():
    assert diff((Run(0, -1, 4),), (Run(0, -1, 5),)) is None


def test_states_without_owners_are_refused():
    with pytest.raises(ValueError, match="2 block states but 1 owners"):
        encode(b"\0\0", [-1])
