"""Hues of requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tui.hues import Hues


@given(st.lists(st.sets(st.integers(0, 20), max_size=6), max_size=20))
def test_requests_that_live_together_differ_and_keep_their_hues(moments):
    hues = Hues(6)
    known: dict[int, int] = {}
    for uids in moments:
        hues.update(uids)
        now = {uid: hues.get(uid) for uid in uids}
        assert len(set(now.values())) == len(uids)
        assert all(known[uid] == now[uid] for uid in uids if uid in known)
        known = now


def test_more_requests_than_hues_share_them_evenly():
    hues = Hues(3)
    hues.update(range(6))
    assert sorted(hues.get(uid) for uid in range(6)) == [0, 0, 1, 1, 2, 2]


def test_who_is_gone_has_no_hue():
    hues = Hues(3)
    hues.update([1])
    hues.update([2])
    assert hues.get(1) is None and hues.get(2) == 0
