"""Where intermediate results of a recorded step lie: those that are never needed together share memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 64
"""Bytes; a line of the caches and the widest vector."""


class Span(NamedTuple):
    """A buffer, and the first and the last call that needs it."""

    n_bytes: int
    first: int
    last: int


def place(spans: Sequence[Span]) -> tuple[list[int], int]:
    """An offset for each buffer, a multiple of ALIGNMENT, and the bytes of all together.

    Linear scan: buffers take their places in the order in which they come into use, each in the smallest gap between those
    in use then that has room for it.
    """
    offsets = [0] * len(spans)
    total = 0
    placed: list[int] = []
    for i in sorted(range(len(spans)), key=lambda i: spans[i].first):
        placed = [other for other in placed if spans[other].last >= spans[i].first]
        offsets[i] = _best_gap([(offsets[other], _end(offsets[other], spans[other])) for other in placed], spans[i].n_bytes)
        placed.append(i)
        total = max(total, _end(offsets[i], spans[i]))
    return offsets, total


def _end(offset: int, span: Span) -> int:
    return -(-(offset + span.n_bytes) // ALIGNMENT) * ALIGNMENT


def _best_gap(taken: list[tuple[int, int]], n_bytes: int) -> int:
    """Start of the smallest gap of at least n_bytes between (start, end) pieces that do not overlap, or of the end."""
    best, best_size, at = None, 0, 0
    for start, end in sorted(taken):
        if start - at >= n_bytes and (best is None or start - at < best_size):
            best, best_size = at, start - at
        at = end
    return at if best is None else best
