"""Places of buffers: none overlaps another that is needed at the same time, and memory is shared where it can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.runner.arena import ALIGNMENT, Span, place

SPANS = st.lists(
    st.builds(
        lambda n_bytes, first, length: Span(n_bytes, first, first + length),
        st.integers(1, 1000),
        st.integers(0, 30),
        st.integers(0, 10),
    ),
    max_size=40,
)


def _live_bytes(spans: list[Span], call: int) -> int:
    return sum(-(-span.n_bytes // ALIGNMENT) * ALIGNMENT for span in spans if span.first <= call <= span.last)


@given(SPANS)
def test_buffers_that_are_needed_together_do_not_overlap(spans: list[Span]) -> None:
    offsets, total = place(spans)
    assert len(offsets) == len(spans)
    for i, (span, offset) in enumerate(zip(spans, offsets, strict=True)):
        assert offset % ALIGNMENT == 0 and offset >= 0 and offset + span.n_bytes <= total
        for other, other_offset in zip(spans[:i], offsets[:i], strict=True):
            apart_in_time = span.last < other.first or other.last < span.first
            assert apart_in_time or offset + span.n_bytes <= other_offset or other_offset + other.n_bytes <= offset


@given(SPANS)
def test_no_more_memory_than_all_buffers_apart_and_no_less_than_the_fullest_call_needs(spans: list[Span]) -> None:
    _, total = place(spans)
    padded = [-(-span.n_bytes // ALIGNMENT) * ALIGNMENT for span in spans]
    assert max((_live_bytes(spans, call) for call in range(42)), default=0) <= total <= sum(padded)


def test_a_chain_of_layers_takes_the_memory_of_one() -> None:
    layer = [Span(64, 0, 2), Span(640, 1, 2), Span(64, 2, 3)]
    spans = [Span(n, first + 2 * i, last + 2 * i) for i in range(30) for n, first, last in layer]
    assert place(spans)[1] <= 64 * 4 + 640
    assert place([]) == ([], 0)
