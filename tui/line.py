"""A line of parts that fits its width by leaving out what matters least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

GAP = "  "


class Part(NamedTuple):
    """A piece of a line; the part with the highest rank is left out first, rank 0 never is."""

    text: str
    style: str = ""
    rank: int = 0


def fit(left: Sequence[Part], right: Sequence[Part], width: int) -> Text:
    """`left` and `right` at the two ends of a line of `width` cells."""
    parts = [(part, True) for part in left if part.text] + [(part, False) for part in right if part.text]
    while _length(parts) > width and any(part.rank for part, _ in parts):
        parts.remove(max(parts, key=lambda item: item[0].rank))
    sides = [Text(GAP).join(Text(p.text, p.style) for p, is_left in parts if is_left == side) for side in (True, False)]
    line = sides[0]
    line.append(" " * max(0, width - sides[0].cell_len - sides[1].cell_len))
    line.append_text(sides[1])
    line.truncate(width, overflow="ellipsis")
    line.no_wrap = True
    return line


def _length(parts: Sequence[tuple[Part, bool]]) -> int:
    return sum(Text(part.text).cell_len for part, _ in parts) + len(GAP) * max(0, len(parts) - 1)
