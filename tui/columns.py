"""The columns of the request table, and the orders it can have. Data first, then the cell of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tui import text
from tui.feed.model import RequestRow
from tui.look import REQUESTS, UNKNOWN_REQUEST, Palette


class Column(NamedTuple):
    key: str
    label: str
    width: int
    """Cells, the gap on its right included; 0 takes what is left over."""
    right: bool
    min_width: int = 0
    """Least width of the table at which the column is shown."""
    for_several: bool = False
    """Shown only where several models answer."""


COLUMNS = (
    Column("id", "Request", 0, False),
    Column("model", "Model", 18, False, 100, for_several=True),
    Column("state", "State", 13, False),
    Column("prompt", "Prompt", 7, True),
    Column("cached", "Cached", 7, True),
    Column("new", "New", 6, True),
    Column("out", "Out", 6, True),
    Column("tok_s", "tok/s", 6, True),
    Column("ttft", "TTFT", 7, True),
    Column("blocks", "Blocks", 7, True, 84),
    Column("age", "Age", 6, True),
)
MIN_ID_WIDTH = 8
MAX_ID_WIDTH = 44
"""Room beyond this is spread over the other columns."""

_STATE_ORDER = {state: place for place, state in enumerate(("running", "preempted", "pending", "completed", "aborted", "failed"))}

ORDERS: tuple[tuple[str, Callable[[RequestRow], Any]], ...] = (
    ("state", lambda row: (_STATE_ORDER.get(row.state, 9), -(row.ended_s or 0), row.key)),
    ("oldest", lambda row: row.key),
    ("newest", lambda row: (-row.uid, row.index)),
    ("blocks", lambda row: (-row.n_blocks, row.key)),
    ("prompt", lambda row: (-row.n_prompt, row.key)),
    ("output", lambda row: (-row.n_output, row.key)),
    ("tok/s", lambda row: (-row.tok_s, row.key)),
)
"""Name and sort key of each order, in the sequence in which a key press goes through them."""


def name(row: RequestRow) -> str:
    """What the table calls an answer: the client's id or the engine's number, and which choice."""
    return (row.id or f"#{row.uid}") + (f" [{row.index}]" if row.index else "")


class Cell(NamedTuple):
    """Text and style of one cell."""

    text: str
    style: str


def cell(column: str, row: RequestRow, now_s: float, width: int, palette: Palette) -> Cell:
    """One cell of the table; `now_s` is the frame's time."""
    look = REQUESTS.get(row.state, UNKNOWN_REQUEST)
    quiet = palette.text if row.live else palette.faint
    match column:
        case "id":
            return Cell(text.middle(name(row), width), quiet)
        case "model":
            return Cell(text.middle(row.model, width), palette.muted if row.live else quiet)
        case "state":
            return Cell(_state(row), getattr(palette, look.colour))
        case "prompt":
            return Cell(text.count(row.n_prompt), quiet)
        case "cached":
            return Cell(text.count(row.n_cached), palette.good if row.n_cached and row.live else quiet)
        case "new":
            return Cell(text.count(row.n_new), quiet)
        case "out":
            return Cell(text.count(row.n_output), quiet)
        case "tok_s":
            return Cell(text.rate(row.tok_s) if row.tok_s else text.NONE, f"bold {quiet}" if row.live else quiet)
        case "ttft":
            return Cell(text.duration(row.ttft_s), quiet)
        case "blocks":
            return Cell(text.count(row.n_blocks), quiet)
        case "age":
            return Cell(text.age((row.ended_s or now_s) - row.arrived_s), quiet)
    raise KeyError(column)


def _state(row: RequestRow) -> str:
    look = REQUESTS.get(row.state, UNKNOWN_REQUEST)
    label = f"{look.mark} {look.label}"
    if row.state == "running" and row.n_output == 0 and row.prefill < 1:
        label += f" {text.share(row.prefill)}"
    return label
