"""Below the full-screen block map: which hue is which request."""

from __future__ import annotations

from rich.text import Text

from tui import columns, shade, text
from tui.blocks import LEVELS, Place
from tui.feed.model import USED, Frame
from tui.hues import Hues
from tui.look import LETTERS
from tui.widgets.paint import Painted


class Owners(Painted):
    """Hue, name and number of blocks of each request that holds any."""

    DEFAULT_CSS = """
    Owners { height: auto; max-height: 4; padding: 0 2; display: none; }
    """

    def __init__(self) -> None:
        super().__init__(id="owners")
        self._text = Text()

    def show(self, frame: Frame, hues: Hues, spot: int | None) -> None:
        palette, held = self.palette, {}
        for row in frame.requests:
            if row.live and row.n_blocks:
                first, n_blocks = held.get(row.uid, (row, 0))
                held[row.uid] = first, n_blocks + row.n_blocks
        result = Text()
        for uid, (row, n_blocks) in held.items():
            hue = hues.get(uid)
            glyph, style = shade.tile(palette, hues, Place(USED, uid, LEVELS), None)
            if self.mono and hue is not None:
                glyph = LETTERS[hue % len(LETTERS)]
            entry = Text(glyph, style)
            entry.append(f" {text.plain(columns.name(row), 24)} ", f"bold {palette.text}" if uid == spot else palette.muted)
            entry.append(f"{n_blocks}   ", palette.text)
            result.append_text(entry)
        if not held:
            result.append("No request holds a block.", palette.faint)
        if result != self._text:
            self._text = result
            self.refresh(layout=True)

    def render(self) -> Text:
        return self._text
