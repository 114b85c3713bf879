"""The request table, updated in place: the cursor stays on its request while rows come, move and go."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from tui import columns, shade, text
from tui.blocks import LEVELS, Place
from tui.feed.model import USED, Frame, RequestRow
from tui.hues import Hues
from tui.look import DARK, LETTERS, PALETTES, Palette

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Mark:
    """First cell of a row: the request's hue in the block map. It also carries the row's key for sorting."""

    key: Key
    glyph: str
    style: str

    def __rich__(self) -> Text:
        return Text(self.glyph, self.style)


class RequestTable(DataTable[object]):
    """Rows by (uid, index); an unchanged cell is not touched."""

    def __init__(self) -> None:
        super().__init__(
            id="requests", classes="card", cursor_type="row", cell_padding=0, cursor_foreground_priority="renderable"
        )
        self.order = 0
        """Index into columns.ORDERS."""
        self.needle = ""
        """Rows whose id, state or model does not contain it are hidden."""
        self._frame: Frame | None = None
        self._hues = Hues(1)
        self._rows: dict[Key, RequestRow] = {}
        self._cells: dict[Key, list[_Mark | columns.Cell]] = {}
        self._shape: tuple[object, ...] = ()
        self._widths: list[tuple[columns.Column, int]] = []

    @property
    def palette(self) -> Palette:
        return PALETTES.get(self.app.theme, DARK)

    @property
    def selected(self) -> RequestRow | None:
        """The row under the cursor."""
        if not self._rows or not self.is_valid_row_index(self.cursor_row):
            return None
        mark = self.get_cell_at(Coordinate(self.cursor_row, 0))
        return self._rows.get(mark.key)

    def show(self, frame: Frame, hues: Hues) -> None:
        self._frame, self._hues = frame, hues
        self._update()

    def on_resize(self) -> None:
        self._update()

    def _update(self) -> None:
        frame = self._frame
        if frame is None or self.size.width == 0:
            return
        selected = self.selected
        names = {row.model for row in frame.requests if row.model} | {model.name for model in frame.loaded}
        self._fit_columns(several=len(names) > 1)
        rows = self._wanted(frame)
        with self.app.batch_update():
            for key in [key for key in self._rows if key not in rows]:
                self.remove_row(_text_key(key))
                del self._rows[key], self._cells[key]
            for key, row in rows.items():
                self._put(key, row, frame.time_s)
            self._sort(list(rows))
            # On the first row the cursor stays at the top; further down it goes with its request.
            if selected is not None and selected.key in self._rows and self.cursor_row > 0:
                self.move_cursor(row=self.get_row_index(_text_key(selected.key)))
        self._caption(frame)

    def _wanted(self, frame: Frame) -> dict[Key, RequestRow]:
        """Rows that pass the filter, in order."""
        needle = self.needle.casefold()
        sort_key = columns.ORDERS[self.order][1]
        shown = (r for r in frame.requests if needle in f"{columns.name(r)} {r.state} {r.model}".casefold())
        return {row.key: row for row in sorted(shown, key=sort_key)}

    def _put(self, key: Key, row: RequestRow, now_s: float) -> None:
        cells: list[_Mark | columns.Cell] = [self._mark(row)]
        cells += [columns.cell(column.key, row, now_s, width - 1, self.palette) for column, width in self._widths]
        old = self._cells.get(key)
        if old is None:
            self.add_row(*map(self._painted, cells, [None, *(column for column, _ in self._widths)]), key=_text_key(key))
        else:
            for column, before, after in zip([None, *(column for column, _ in self._widths)], old, cells, strict=True):
                if before != after:
                    self.update_cell(_text_key(key), column.key if column else "mark", self._painted(after, column))
        self._rows[key], self._cells[key] = row, cells

    @staticmethod
    def _painted(cell: _Mark | columns.Cell, column: columns.Column | None) -> _Mark | Text:
        if isinstance(cell, _Mark):
            return cell
        return Text(cell.text, cell.style, justify="right" if column and column.right else "left")

    def _mark(self, row: RequestRow) -> _Mark:
        hue = self._hues.get(row.uid) if row.live and row.n_blocks else None
        if hue is None:
            return _Mark(row.key, " ", "")
        if self.app.no_color:
            return _Mark(row.key, LETTERS[hue % len(LETTERS)], "")
        glyph, style = shade.tile(self.palette, self._hues, Place(USED, row.uid, LEVELS), None)
        return _Mark(row.key, glyph, str(style.color.name) if style.color else "")

    def _sort(self, order: list[Key]) -> None:
        shown = [self.get_cell_at(Coordinate(place, 0)).key for place in range(self.row_count)]
        if shown != order:
            rank = {key: place for place, key in enumerate(order)}
            self.sort("mark", key=lambda mark: rank[mark.key])

    def _fit_columns(self, *, several: bool) -> None:
        """Columns for this width; the table starts anew when they or the theme change."""
        width = self.size.width - self.styles.scrollbar_size_vertical
        shape = (width, self.app.theme, several)
        if shape == self._shape:
            return
        self._shape = shape
        chosen = [column for column in columns.COLUMNS if width >= column.min_width and (several or not column.for_several)]
        fixed = [column for column in chosen if column.width]
        rest = max(columns.MIN_ID_WIDTH, width - 2 - sum(column.width for column in fixed))
        air = max(0, rest - columns.MAX_ID_WIDTH) // len(fixed)
        id_width = rest - air * len(fixed)
        self._widths = [(column, column.width + air if column.width else id_width) for column in chosen]
        self.clear(columns=True)
        self._rows.clear()
        self._cells.clear()
        self.add_column("", width=2, key="mark")
        for column, column_width in self._widths:
            label = Text(column.label, self.palette.muted, justify="right" if column.right else "left")
            self.add_column(label, width=column_width, key=column.key)

    def _caption(self, frame: Frame) -> None:
        totals = frame.totals
        title = f"Requests  {totals.n_running} running, {totals.n_waiting} waiting"
        if frame.n_hidden:
            title += f" ({frame.n_hidden} of them not listed)"
        self.border_title = title
        order = f"sorted by {columns.ORDERS[self.order][0]}"
        self.border_subtitle = f"filter: {text.plain(self.needle, 20)}  {order}".replace("[", "\\[") if self.needle else order


def _text_key(key: Key) -> str:
    return f"{key[0]}:{key[1]}"
