"""Numbers and strangers' strings as short text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui import text


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.count(0), "0"),
        (text.count(9999), "9999"),
        (text.count(12_345), "12.3k"),
        (text.count(131_072), "131k"),
        (text.count(999_600), "1.00M"),
        (text.rate(46.81), "46.8"),
        (text.rate(1463.2), "1463"),
        (text.duration(None), "–"),
        (text.duration(0.0412), "41 ms"),
        (text.duration(0.42), "0.42 s"),
        (text.duration(12.34), "12.3 s"),
        (text.duration(75), "1:15"),
        (text.age(0.9), "0s"),
        (text.age(754), "12:34"),
        (text.age(7500), "2:05h"),
        (text.age(260_000), "3d"),
        (text.size(512), "512 B"),
        (text.size(98 << 20), "98.0 MiB"),
        (text.size(180 << 20), "180 MiB"),
        (text.share(0.001), "<1%"),
        (text.share(0.999), "99%"),
        (text.share(1.0), "100%"),
        (text.share(None), "–"),
    ],
)
def test_figures(shown, expected):
    assert shown == expected


@given(st.floats(0, 1e14))
def test_figures_never_outgrow_their_columns(value):
    assert len(text.count(value)) <= 6
    assert len(text.duration(value)) <= 6 or value > 8e9


@given(st.text(), st.integers(1, 30))
def test_a_strangers_text_cannot_move_the_cursor_or_break_the_line(stranger, width):
    for shown in (text.plain(stranger, width), text.middle(stranger, width)):
        assert len(shown) <= width
        assert shown.isprintable()


def test_long_ids_keep_both_ends():
    assert text.middle("chatcmpl-0123456789abcdef", 12) == "chatcm…bcdef"
