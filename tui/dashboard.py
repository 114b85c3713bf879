"""The Textual application: paints the feed's newest frame at its own rate, and turns keys into actions."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input

from tui import columns
from tui.feed.client import FeedClient, FeedError
from tui.feed.model import Frame
from tui.hues import Hues
from tui.look import DARK, DARK_THEME, LIGHT_THEME, PALETTES, THEMES, Palette
from tui.screens.confirm import Confirm
from tui.screens.help import Help
from tui.text import plain
from tui.widgets.block_map import BlockMap
from tui.widgets.header import HeaderLine
from tui.widgets.latency import LatencyCard
from tui.widgets.memory import MemoryCard
from tui.widgets.notice import Notice
from tui.widgets.owners import Owners
from tui.widgets.request_table import RequestTable
from tui.widgets.throughput import Throughput

RATES = (0.5, 1.0, 2.0, 4.0)
"""Paints per second that + and - go through."""
_MAP_ROWS = ((50, 12), (36, 7), (0, 3))
"""Least height of the screen, and most rows of the block map on the overview."""
_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}")


class Dashboard(App[None]):
    """`pagewell top`."""

    TITLE = "Pagewell"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-normal"), (160, "-wide")]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-medium"), (50, "-tall")]
    BINDINGS: ClassVar[list[Binding]] = [
        Binding("1", "view('overview')", "Overview", tooltip="overview: throughput, latency, cache, blocks, requests"),
        Binding("2", "view('blocks')", "Blocks", tooltip="the block map on the whole screen"),
        Binding("3", "view('requests')", "Requests", tooltip="the request table on the whole screen"),
        Binding("x", "abort", "Abort", tooltip="end the request under the cursor, after asking"),
        Binding("p", "freeze", "Freeze", tooltip="hold the picture; again to go on"),
        Binding("s", "sort", "Sort", tooltip="next order of the requests"),
        Binding("slash", "filter", "Filter", key_display="/", tooltip="only requests whose id, state or model has this text"),
        Binding("enter", "spot", "Spotlight", show=False, tooltip="let the blocks of the request under the cursor stand out"),
        Binding("right", "next_spot(1)", "Next", show=False, key_display="→", tooltip="on the block map: of the next request"),
        Binding("left", "next_spot(-1)", "Previous", show=False, key_display="←", tooltip="on the block map: of the one before"),
        Binding("escape", "clear", "Clear", show=False, key_display="esc", tooltip="end the spotlight and the filter"),
        Binding("plus,equals_sign", "rate(1)", "Faster", key_display="+", show=False, tooltip="paint more often"),
        Binding("minus", "rate(-1)", "Slower", key_display="-", show=False, tooltip="paint less often"),
        Binding("y", "copy_id", "Copy id", show=False, tooltip="copy the id of the request under the cursor"),
        Binding("w", "save_svg", "Save SVG", show=False, tooltip="save the screen as an SVG picture in the working directory"),
        Binding("t", "theme", "Theme", show=False, tooltip="dark or light"),
        Binding("question_mark", "help", "Help", key_display="?", tooltip="this page"),
        Binding("q,ctrl+c", "quit", "Quit", key_display="q", tooltip="leave; the server runs on"),
    ]

    def __init__(self, client: FeedClient, *, readonly: bool = False, light: bool = False) -> None:
        super().__init__()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = LIGHT_THEME if light else DARK_THEME
        self.client = client
        self._readonly = readonly
        self._rate = RATES[-1]
        self._frozen = False
        self.spot: int | None = None
        self._hues = Hues(len(DARK.owners))
        self._painted: tuple[object, ...] = ()
        self._shown: Frame | None = None
        self._abort_shown = True

    @property
    def palette(self) -> Palette:
        return PALETTES.get(self.theme, DARK)

    @property
    def _main(self) -> Screen[object]:
        """The screen with the widgets, also while a modal one lies over it."""
        return self.screen_stack[0]

    def compose(self) -> ComposeResult:
        yield HeaderLine(self.client.url)
        with Vertical(id="body"):
            with Horizontal(id="cards"):
                yield Throughput()
                yield LatencyCard()
                yield MemoryCard()
            yield BlockMap()
            yield Owners()
            yield RequestTable()
        yield Notice()
        yield Input(id="filter", placeholder="filter by id, state or model, enter to keep, escape to clear", compact=True)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._main.query_one(RequestTable).focus()
        self._paint_timer = self.set_interval(1 / self._rate, self.paint)
        self.run_worker(self.client.run(), name="feed", exit_on_error=True)
        self.paint()

    async def on_unmount(self) -> None:
        await self.client.close()

    def on_resize(self) -> None:
        self._painted = ()
        self.call_after_refresh(self.paint)

    def paint(self) -> None:
        """Show the newest frame, unless it is on the screen already."""
        if not self.screen_stack or not self._main.query(HeaderLine):  # the timer may fire while the screen is taken down
            return
        frame, connection = self.client.state.frame, self.client.connection
        if self._frozen and self._shown is not None:
            frame = self._shown
        ready = frame is not None and frame.model.state == "ready" and connection.state == "live"
        look = (frame, connection, self._frozen, self._rate, self.spot, self.theme, self.size)
        if look == self._painted:
            return
        self._painted = look
        self._main.set_class(not ready, "notice")
        if self._abort_shown != self._may_abort:
            self._abort_shown = self._may_abort
            self.refresh_bindings()
        self._main.query_one(HeaderLine).show(frame, connection, frozen=self._frozen, rate=self._rate)
        if connection.state != "live":
            self._main.query_one(Notice).show_connection(connection, self.client.url)
        elif frame is not None and not ready:
            self._main.query_one(Notice).show_model(frame)
        elif frame is not None:
            self._show(frame)

    def _show(self, frame: Frame) -> None:
        self._shown = frame
        self._hues.update(row.uid for row in frame.requests if row.live)
        if self.spot is not None and self._hues.get(self.spot) is None:
            self.spot = None
        self._main.query_one(Throughput).show(frame, self.client.state.history)
        self._main.query_one(LatencyCard).show(frame)
        self._main.query_one(MemoryCard).show(frame)
        block_map = self._main.query_one(BlockMap)
        block_map.max_rows = next(rows for height, rows in _MAP_ROWS if self.size.height >= height)
        block_map.show(frame, self._hues, self.spot)
        self._main.query_one(Owners).show(frame, self._hues, self.spot)
        self._main.query_one(RequestTable).show(frame, self._hues)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Grey out the abort where it cannot work."""
        return None if action == "abort" and not self._may_abort else True

    def action_view(self, name: str) -> None:
        screen = self._main
        for view in ("overview", "blocks", "requests"):
            screen.set_class(view == name, f"view-{view}")
        self._main.query_one(BlockMap).roomy = name == "blocks"
        self._repaint()

    def action_freeze(self) -> None:
        self._frozen = not self._frozen
        self.paint()

    def action_rate(self, step: int) -> None:
        self._rate = RATES[max(0, min(len(RATES) - 1, RATES.index(self._rate) + step))]
        self._paint_timer.stop()
        self._paint_timer = self.set_interval(1 / self._rate, self.paint)
        self.paint()

    def action_sort(self) -> None:
        table = self._main.query_one(RequestTable)
        table.order = (table.order + 1) % len(columns.ORDERS)
        self._repaint()

    def action_filter(self) -> None:
        entry = self._main.query_one("#filter", Input)
        entry.add_class("-open")
        entry.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._main.query_one(RequestTable).needle = event.value
        self._repaint()

    def on_input_submitted(self) -> None:
        self._close_filter()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.action_spot()

    def action_spot(self) -> None:
        row = self._main.query_one(RequestTable).selected
        if row is not None:
            self.spot = None if self.spot == row.uid or not row.live else row.uid
            self.paint()

    def action_next_spot(self, step: int) -> None:
        uids = sorted({row.uid for row in self._shown.requests if row.live and row.n_blocks}) if self._shown else []
        if uids and self._main.query_one(BlockMap).roomy:
            # From no spotlight on, the first step leads to the first or the last request.
            place = uids.index(self.spot) + step if self.spot in uids else min(step, 0)
            self.spot = uids[place % len(uids)]
            self.paint()

    def action_clear(self) -> None:
        entry = self._main.query_one("#filter", Input)
        if entry.has_class("-open") or entry.value:
            entry.value = ""
            self._close_filter()
        self.spot = None
        self.paint()

    def action_theme(self) -> None:
        self.theme = DARK_THEME if self.theme == LIGHT_THEME else LIGHT_THEME
        self._repaint()

    def action_copy_id(self) -> None:
        row = self._main.query_one(RequestTable).selected
        if row is not None:
            self.copy_to_clipboard(row.id or str(row.uid))
            self.notify(f"Copied {plain(row.id or str(row.uid), 40)}", markup=False)

    def action_save_svg(self) -> None:
        path = Path.cwd() / f"pagewell-{datetime.now():%Y-%m-%d-%H%M%S}.svg"
        try:
            # The picture would fetch its font from afar when it is looked at; any monospaced one will do.
            path.write_text(_FONT_FACE.sub("", self.export_screenshot()), "utf-8")
        except OSError as error:
            self.notify(str(error), title="Not saved", severity="error", markup=False)
        else:
            self.notify(str(path), title="Saved", markup=False)

    def action_help(self) -> None:
        keys = [(binding.key_display or binding.key.split(",")[0], binding.tooltip) for binding in self.BINDINGS]
        self.push_screen(Help(keys, self.palette, self.no_color))

    def action_abort(self) -> None:
        row = self._main.query_one(RequestTable).selected
        if row is None or not row.live:
            self.notify("There is no running request under the cursor.", severity="warning")
            return

        async def act(yes: bool | None) -> None:
            if not yes:
                return
            try:
                await self.client.abort(row.uid)
            except FeedError as error:
                self.notify(str(error), title="Not aborted", severity="error", markup=False)
            else:
                self.notify(f"Aborting {plain(columns.name(row), 40)}", markup=False)

        what = f"{row.n_prompt} prompt tokens, {row.n_output} tokens answered. Its client gets an ended stream."
        self.push_screen(Confirm(f"Abort {plain(columns.name(row), 40)}?", what), act)

    @property
    def _may_abort(self) -> bool:
        frame = self.client.state.frame
        return not self._readonly and (frame is None or frame.control != "readonly")

    def _close_filter(self) -> None:
        self._main.query_one("#filter", Input).remove_class("-open")
        self._main.query_one(RequestTable).focus()

    def _repaint(self) -> None:
        self._painted = ()
        self.call_after_refresh(self.paint)
