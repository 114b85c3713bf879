"""What the keys do and what the signs mean."""

from __future__ import annotations

from collections.abc import Sequence

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
    ("Blocks", "KV blocks that the request holds now"),
    ("Busy", "a long step runs; the figures are as old as it says"),
)


class Help(ModalScreen[None]):
    """Any of its keys closes it."""

    BINDINGS = [Binding("escape,q,question_mark,enter", "dismiss", "Close")]
    DEFAULT_CSS = """
    Help { align: center middle; background: $background 60%; }
    Help > VerticalScroll { width: 76; max-width: 96%; height: auto; max-height: 94%; border: round $accent;
        background: $pw-surface; padding: 0 2; }
    """

    def __init__(self, keys: Sequence[tuple[str, str]], palette: Palette, mono: bool) -> None:
        super().__init__()
        self._keys, self._palette, self._mono = keys, palette, mono

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = "Help"
            yield Static(self._content())

    def _content(self) -> Table:
        palette = self._palette
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column()
        for key, meaning in self._keys:
            table.add_row(Text(key, f"bold {palette.accent}"), Text(meaning))
        table.add_row()
        for state, label in STATE_NAMES.items():
            glyph = MARKS[state]
            if self._mono and label in ("used", "shared"):
                glyph = LETTERS[0] if label == "used" else LETTERS[0].upper()
            table.add_row(Text(f"{glyph}  block {label}", palette.text), Text(_BLOCKS[label], palette.muted))
        table.add_row()
        states = "   ".join(f"{look.mark} {look.label}" for look in REQUESTS.values())
        table.add_row(Text("Requests", palette.text), Text(states, palette.muted))
        for word, meaning in _WORDS:
            table.add_row(Text(word, palette.text), Text(meaning, palette.muted))
        return table


_BLOCKS = {
    "used": "in one request; its hue (or letter) is the request's",
    "shared": "in several requests at once",
    "cached": "in none, but a prompt that begins alike finds it",
    "free": "empty",
}
