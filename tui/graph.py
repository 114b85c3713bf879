"""History as braille: two samples and four levels in a cell. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tui.look import BRAILLE_BASE, BRAILLE_DOWN, BRAILLE_UP


def resample(samples: Iterable[tuple[float, float]], end_s: float, span_s: float, n: int) -> list[float]:
    """Means of (time, value) samples in n equal stretches of time that end at `end_s`.

    Stretches lie on whole multiples of their length, so that a graph moves by whole places and never shimmers. A
    stretch without a sample between others keeps the value before it; outside of them it is 0.
    """
    step_s = span_s / n
    last = math.floor(end_s / step_s)
    sums, counts = [0.0] * n, [0] * n
    for time_s, value in samples:
        place = math.floor(time_s / step_s) - last + n - 1
        if 0 <= place < n:
            sums[place] += value
            counts[place] += 1
    filled = [place for place, count in enumerate(counts) if count]
    values = [0.0] * n
    if filled:
        held = 0.0
        for place in range(filled[0], filled[-1] + 1):
            if counts[place]:
                held = sums[place] / counts[place]
            values[place] = held
    return values


_ROUND = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)


def nice_top(value: float) -> float:
    """The least round number (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15 ...) that is not below `value`; 1 at least."""
    if value <= 1:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(value))
    return next(factor * scale for factor in _ROUND if factor * scale >= value * (1 - 1e-9))


def braille(values: Sequence[float], height: int, top: float, *, hanging: bool = False) -> list[str]:
    """`values` (an even number) as an area `height` cells high, top line first; `top` fills it.

    A value above 0 shows at least one dot. hanging: the area grows downwards from the first line.
    """
    n_levels = 4 * height
    levels = [0 if v <= 0 else max(1, min(n_levels, round(v / top * n_levels))) for v in values]
    left_dots, right_dots = BRAILLE_DOWN if hanging else BRAILLE_UP
    lines = []
    for row in range(height):
        below = 4 * (row if hanging else height - 1 - row)
        cells = (
            left_dots[min(4, max(0, left - below))] | right_dots[min(4, max(0, right - below))]
            for left, right in zip(levels[::2], levels[1::2], strict=True)
        )
        lines.append("".join(chr(BRAILLE_BASE + dots) if dots else " " for dots in cells))
    return lines
