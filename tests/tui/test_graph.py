"""History graphs in braille."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.graph import braille, nice_top, resample


def test_an_area_grows_from_the_foot_and_fills_at_the_top():
    assert braille([0, 1, 4, 8], 2, 8.0) == [" ⢸", "⢀⣿"]


def test_a_hanging_area_grows_from_the_first_line():
    assert braille([0, 1, 4, 8], 2, 8.0, hanging=True) == ["⠈⣿", " ⢸"]


def test_a_little_is_never_nothing():
    assert braille([0.001, 0], 1, 1000.0) == ["⡀"]


@given(st.lists(st.floats(0, 100), min_size=2, max_size=40).filter(lambda v: len(v) % 2 == 0), st.integers(1, 5))
def test_more_is_never_lower(values, height):
    lines = braille(values, height, 100.0)
    dots = [column_dots(lines, column) for column in range(len(values))]
    order = sorted(range(len(values)), key=values.__getitem__)
    assert [dots[place] for place in order] == sorted(dots)


def column_dots(lines: list[str], column: int) -> int:
    """Dots in one half of a cell's column."""
    half = 0xB8 if column % 2 else 0x47
    cells = [line[column // 2] for line in lines]
    return sum(((ord(cell) - 0x2800) & half).bit_count() for cell in cells if cell != " ")


def test_stretches_lie_on_the_clock_so_that_a_graph_never_shimmers():
    samples = [(float(t), float(t % 7)) for t in range(100)]
    before = resample(samples, 60.0, 40.0, 10)
    after = resample(samples, 64.0, 40.0, 10)
    assert after[:-2] == before[1:-1]


def test_a_gap_keeps_the_value_before_it_and_the_time_before_the_start_is_empty():
    assert resample([(4.5, 3.0), (7.5, 5.0)], 9.5, 10.0, 10) == [0, 0, 0, 0, 3, 3, 3, 5, 0, 0]


SCALES = [(0, 1), (1, 1), (1.2, 1.5), (220, 250), (250, 250), (251, 300), (9.6, 10), (999, 1000)]


@pytest.mark.parametrize(("value", "top"), SCALES)
def test_scales_end_at_round_numbers(value, top):
    assert nice_top(value) == pytest.approx(top)
