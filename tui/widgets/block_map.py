"""The live block map: every KV block of the pool, hue = owner, marks for shared and cached ones."""

from __future__ import annotations

from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Region, Size
from textual.strip import Strip

from tui import shade
from tui.blocks import EMPTY, Place, blocks_per_place, places
from tui.feed.model import CACHED, FREE, PINNED, SHARED, USED, Frame, Model
from tui.hues import Hues
from tui.look import MARKS, STATE_NAMES, TILES
from tui.text import plain
from tui.widgets.paint import Painted


class Layout(NamedTuple):
    """How places lie in cells: `per_cell` places share a cell, or a place is `cells` wide; a place is `per_place` blocks."""

    per_place: int
    per_cell: int
    cells: int


def layout(n_blocks: int, width: int, height: int, *, mono: bool, roomy: bool) -> Layout:
    """The largest blocks that fit. roomy: use the height there is; else two blocks share a cell (one, without colour)."""
    n_cells = width * height
    if roomy:
        for cells in (2, 1):
            if n_blocks * cells <= (n_cells if cells == 1 else width // 2 * 2 * height):
                return Layout(1, 1, cells)
    if mono:
        return Layout(blocks_per_place(n_blocks, n_cells), 1, 1)
    return Layout(blocks_per_place(n_blocks, 2 * n_cells), 2, 1)


class BlockMap(Painted):
    """Paints only the rows whose blocks changed."""

    DEFAULT_CSS = """
    BlockMap { height: auto; }
    """

    def __init__(self, *, max_rows: int = 6) -> None:
        super().__init__(id="map", classes="card")
        self.max_rows = max_rows
        self.roomy = False
        self._frame: Frame | None = None
        self._hues = Hues(1)
        self._spot: int | None = None
        self._look: tuple[object, ...] = ()
        self._layout = Layout(1, 2, 1)
        self._rows: list[tuple[tuple[Place, int | None], ...]] = []
        self._n_rows_wanted = 0

    def on_mount(self) -> None:
        self.border_title = "KV blocks"

    def show(self, frame: Frame, hues: Hues, spot: int | None) -> None:
        """Take a frame; `spot` is the uid whose blocks stand out, None for all alike."""
        self._frame, self._hues, self._spot = frame, hues, spot
        self._update()

    def on_resize(self) -> None:
        self._update()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as the pool needs at this width, max_rows at most."""
        n_blocks = self._frame.totals.n_blocks if self._frame else 0
        wanted = layout(n_blocks, width, self.max_rows, mono=self.mono, roomy=False)
        return max(1, -(-n_blocks // max(1, wanted.per_place * wanted.per_cell * width)))

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        row = self._rows[y] if y < len(self._rows) else ()
        segments: list[Segment] = []
        for glyphs, style in self._cells([place for place, _ in row]):
            if segments and segments[-1].style == style:
                segments[-1] = Segment(segments[-1].text + glyphs, style)
            else:
                segments.append(Segment(glyphs, style))
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def _cells(self, row: list[Place]) -> list[tuple[str, Style]]:
        palette, spot = self.palette, self._spot
        if self.mono:
            return [shade.letter(palette, self._hues, place, self._layout.cells, spot) for place in row]
        if self._layout.per_cell == 1:
            tiles = (shade.tile(palette, self._hues, place, spot) for place in row)
            return [(glyph * self._layout.cells, style) for glyph, style in tiles]
        row = [*row, EMPTY] if len(row) % 2 else row
        return [shade.pair(palette, self._hues, first, second, spot) for first, second in zip(row[::2], row[1::2], strict=True)]

    def _update(self) -> None:
        """Lay the blocks out and mark the rows that differ from what is on the screen."""
        frame = self._frame
        width, height = self.content_size
        if frame is None or width == 0 or height == 0:
            return
        n_blocks = frame.totals.n_blocks
        wanted = self.get_content_height(Size(0, 0), Size(0, 0), width)
        if wanted != self._n_rows_wanted:
            self._n_rows_wanted = wanted
            self.refresh(layout=True)
        self._layout = layout(n_blocks, width, height, mono=self.mono, roomy=self.roomy)
        per_row = width // self._layout.cells * self._layout.per_cell
        flat = [(place, self._hues.get(place.owner)) for place in places(frame.blocks, self._layout.per_place)]
        rows = [tuple(flat[start : start + per_row]) for start in range(0, len(flat), per_row)]
        look = (self.app.theme, self._spot, self._layout, width, height, n_blocks)
        if look != self._look:
            self._look, self._rows = look, rows
            self._caption(frame)
            self.refresh()
            return
        n_rows = max(len(rows), len(self._rows))
        old, new = self._rows + [()] * (n_rows - len(self._rows)), rows + [()] * (n_rows - len(rows))
        dirty = [y for y in range(n_rows) if old[y] != new[y]]
        self._rows = rows
        if dirty:
            self.refresh(*(Region(0, y, width, 1) for y in dirty))

    def _caption(self, frame: Frame) -> None:
        """Title and legend; both repaint the whole widget, so nothing in them may change from frame to frame."""
        several = len(frame.loaded) > 1
        parts_of = (_blocks(model, None if several else frame.totals.n_blocks) for model in frame.loaded)
        title = f"KV blocks  {' + '.join(parts_of)}"
        if self._layout.per_place > 1:
            title += f"  ({self._layout.per_place} blocks a place)"
        self.border_title = title
        parts: list[str | tuple[str, str]] = []
        for state, name in STATE_NAMES.items():
            glyph, colour = self._legend(state)
            parts += [(f" {glyph} ", colour), (f"{name} ", self.palette.muted)]
        self.border_subtitle = Content.assemble(*parts)

    def _legend(self, state: int) -> tuple[str, str]:
        if self.mono:
            return ({USED: "a", SHARED: "A"}.get(state) or TILES[state]), ""
        glyph = (MARKS if self._layout.per_cell == 2 else TILES)[state]
        palette = self.palette
        colours = {PINNED: palette.accent, CACHED: palette.cached, FREE: palette.faint}
        return glyph, colours.get(state, palette.owners[0])


def _blocks(model: Model, n_blocks: int | None) -> str:
    """How many blocks a model has for what, and of how many tokens. n_blocks: in all, where it is the only one; else its name
    tells it from others."""
    groups = model.kv_groups
    counts = ", ".join(f"{n:,} {name}" for name, n in groups.items())
    if len(groups) < 2:
        counts = f"{sum(groups.values()) if n_blocks is None else n_blocks:,}"
    name = f"{plain(model.name, 24)}: " if n_blocks is None else ""
    return f"{name}{counts} × {model.block_size} tokens"
