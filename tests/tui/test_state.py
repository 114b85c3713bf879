"""Key frames and deltas as the dashboard adds them up. That they equal the server's state is tested with the server."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tui.frames import NOW, frame, history, row
from tui.feed.model import Delta, KeyFrame, Patch, Point, Run
from tui.feed.state import FeedState, patched

BLOCK = st.tuples(st.integers(0, 3), st.sampled_from([-1, 1, 2]))


def runs_of(blocks):
    return tuple(Run(state, owner, 1) for state, owner in blocks)


def expand(runs):
    return [(run.state, run.owner) for run in runs for _ in range(run.count)]


@given(st.data())
def test_patches_change_their_blocks_and_no_others(data):
    blocks = data.draw(st.lists(BLOCK, min_size=1, max_size=50))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(blocks)), max_size=8)))
    patches, expected = [], list(blocks)
    for start, stop in zip(cuts[::2], cuts[1::2], strict=False):
        state, owner = data.draw(BLOCK)
        patches.append(Patch(start, stop - start, state, owner))
        expected[start:stop] = [(state, owner)] * (stop - start)
    result = patched(runs_of(blocks), patches)
    assert expand(result) == expected
    assert all((a.state, a.owner) != (b.state, b.owner) for a, b in zip(result, result[1:], strict=False))


@pytest.fixture
def state():
    state = FeedState()
    state.apply("key", msgspec.json.encode(KeyFrame(frame=frame(5), history=history())).decode())
    return state


def send(state: FeedState, **fields) -> bool:
    return state.apply("delta", msgspec.json.encode(Delta(time_s=NOW + 0.25, age_s=0.0, **fields)).decode())


def test_a_delta_changes_what_it_names_and_nothing_else(state):
    before = state.frame
    changed = row(11, id="agent-one", n_output=41)
    assert send(state, seq=6, changed=(changed, row(99)), removed=((9, 0),), point=Point(NOW + 0.25, 1.0, 2.0, 1, 0, 0.5, 0.1))
    assert [r.uid for r in state.frame.requests] == [11, 12, 13, 14, 15, 99]
    assert state.frame.requests[0] == changed
    assert (state.frame.totals, state.frame.blocks) == (before.totals, before.blocks)
    assert state.history[-1].output_tok_s == 1.0
    assert state.history[0].time_s >= NOW + 0.25 - 300


@pytest.mark.parametrize("seq", [5, 7, 1])
def test_a_delta_that_does_not_follow_is_passed_over(state, seq):
    before = state.frame
    assert not send(state, seq=seq, n_hidden=3)
    assert state.frame is before


def test_a_delta_before_any_key_frame_is_passed_over():
    state = FeedState()
    assert not send(state, seq=1)
    assert state.frame is None


def test_events_and_fields_of_a_newer_server_are_ignored(state):
    assert not state.apply("news", "{}")
    assert state.apply("delta", f'{{"seq":6,"time_s":{NOW},"age_s":0.5,"weather":"fine"}}')
    assert state.frame.age_s == 0.5


def test_what_is_no_frame_is_an_error(state):
    with pytest.raises(msgspec.MsgspecError):
        state.apply("key", '{"frame":1}')
