"""What the keys do and what the signs mean."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from tui.look import LETTERS, MARKS, REQUESTS, STATE_NAMES, Palette

_WORDS = (
    ("TTFT", "time to first token: arrival until the answer begins"),
    ("ITL", "time between two tokens of an answer"),
    ("Cached", "prompt tokens whose KV was found in the prefix cache"),
    ("New", "prompt tokens that had to be computed"),
    ("waste", "room in used KV blocks that holds no token yet"),
    ("found", "prompt tokens found: here, in host memory, on disk"),
    ("Blocks", "KV blocks that the request holds now"),
    ("Busy", "a long step runs; the figures are as old as it says"),
)


class Help(ModalScreen[None]):
    """Any of its keys closes it."""

    BINDINGS = [Binding("escape,q,question_mark,enter", "dismiss", "Close")]
    DEFAULT_CSS = """
    Help { align: center middle; }
    Help > VerticalScroll { width: 78; max-width: 100%; height: auto; max-height: 100%; border: round $accent;
        background: $pw-surface; padding: 0 1; scrollbar-size-vertical: 1; scrollbar-background: $pw-surface;
        scrollbar-color: $pw-border; }
    """

    def __init__(self, keys: Sequence[tuple[str, str]], palette: Palette, mono: bool) -> None:
        super().__init__()
        self._keys, self._palette, self._mono = keys, palette, mono

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = "Help"
            yield Static(Group(self._key_table(), Text(), self._sign_table()))

    def _key_table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for key, meaning in self._keys:
            table.add_row(Text(key, f"bold {self._palette.accent}", justify="right"), Text(meaning))
        return table

    def _sign_table(self) -> Table:
        palette = self._palette
        table = Table.grid(padding=(0, 2))
        for state, label in STATE_NAMES.items():
            glyph = MARKS[state]
            if self._mono and label in ("used", "shared"):
                glyph = LETTERS[0] if label == "used" else LETTERS[0].upper()
            table.add_row(Text(f"{glyph} {label}"), Text(_BLOCKS[label], palette.muted))
        for look in REQUESTS.values():
            table.add_row(Text(f"{look.mark} {look.label}", getattr(palette, look.colour)), Text(look.meaning, palette.muted))
        for word, meaning in _WORDS:
            table.add_row(Text(word), Text(meaning, palette.muted))
        return table


_BLOCKS = {
    "used": "a KV block of one request, in the request's hue (or letter)",
    "shared": "a block of several requests at once",
    "pinned": "a block of none, kept for prompts that begin alike",
    "cached": "a block of none, but a prompt that begins alike finds it",
    "free": "an empty block",
}
