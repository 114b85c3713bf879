"""The KV cache and the machine: how full, how often the prefix cache hits, what it costs."""

from __future__ import annotations

from rich.text import Text

from tui import text
from tui.feed.model import CACHED, FREE, PINNED, SHARED, USED, Frame, Totals
from tui.look import MARKS
from tui.widgets.paint import Painted

MOST_WASTE = 0.04
"""Share of the room in used blocks without a token that is worth a look: answers are short for the size of the blocks."""


class MemoryCard(Painted):
    """A stacked bar over a few figures."""

    def __init__(self) -> None:
        super().__init__(id="memory", classes="card")
        self._frame: Frame | None = None

    def on_mount(self) -> None:
        self.border_title = "KV cache"

    def show(self, frame: Frame) -> None:
        self._frame = frame
        self.refresh()

    def render(self) -> Text:
        frame = self._frame
        if frame is None:
            return Text()
        width, height = self.size
        card = Text("\n").join([self._bar(frame.totals, width), *self._figures(frame)][:height])
        card.no_wrap = True
        return card

    def _bar(self, totals: Totals, width: int) -> Text:
        used = totals.n_used / totals.n_blocks if totals.n_blocks else 0.0
        room, total = width - 5, max(1, totals.n_blocks)
        bar = Text()
        end = 0
        for state, n_blocks, colour in self._parts(totals):
            end += n_blocks
            cells = max(round(end / total * room) - bar.cell_len, 1 if n_blocks else 0)
            bar.append(MARKS[state] * cells, colour)
        bar.truncate(room)
        bar.append(" " * (room - bar.cell_len))
        bar.append(f"{text.share(used):>5}", f"bold {self.palette.bad if used > 0.95 else self.palette.text}")
        return bar

    def _figures(self, frame: Frame) -> list[Text]:
        """Lines of figures, the most telling first."""
        palette, totals, process = self.palette, frame.totals, frame.process
        kv_bytes, weights_bytes = sum(m.kv_bytes for m in frame.loaded), sum(m.weights_bytes for m in frame.loaded)
        counts = Text("  ").join(
            Text(MARKS[state], colour).append(f" {text.count(n_blocks)}", palette.text)
            for state, n_blocks, colour in self._parts(totals)
            if n_blocks or state != PINNED
        )
        hits = (text.share(totals.hit_rate), f"bold {palette.good if totals.hit_rate else palette.text}")
        waste = (f"{totals.waste:.1%}", palette.warn if totals.waste > MOST_WASTE else palette.text)
        preempted = (text.count(totals.n_preemptions), f"bold {palette.warn if totals.n_preemptions else palette.text}")
        here = totals.cached_tokens - totals.cached_host_tokens - totals.cached_disk_tokens
        rows = (
            ("prefix hits ", hits, "  waste ", waste),
            ("preempted ", preempted, "  swapped ", text.count(totals.n_swaps)),
            (
                *("found ", text.count(here), "  host ", text.count(totals.cached_host_tokens)),
                *("  disk ", text.count(totals.cached_disk_tokens)),
            ),
            (
                *("host ", f"{text.count(totals.n_host_used)}/{text.count(totals.n_host_blocks)}"),
                *("  evicted ", text.count(totals.n_evictions)),
            ),
            self._disk(totals),
            ("cpu ", f"{process.cpu_cores:.1f}/{process.n_cores}", "  rss ", text.size(process.rss_bytes)),
            ("to host ", text.size(totals.to_host_bytes), "  back ", text.size(totals.from_host_bytes)),
            ("to disk ", text.size(totals.to_disk_bytes), "  back ", text.size(totals.from_disk_bytes)),
            ("KV ", text.size(kv_bytes), "  weights ", text.size(weights_bytes)),
            ("memory ", f"{text.size(process.host_used_bytes)} of {text.size(process.host_total_bytes)}"),
        )
        lines = [counts]
        for row in rows:
            line = Text()
            for place, part in enumerate(row):
                line.append(*(part if isinstance(part, tuple) else (part, palette.text if place % 2 else palette.muted)))
            lines.append(line)
        return lines

    def _disk(self, totals: Totals) -> tuple[str | tuple[str, str], ...]:
        if not totals.disk_most_bytes:
            return "disk ", "none"
        held = ("disk ", text.count(totals.n_disk_blocks), "  ", text.size(totals.disk_bytes))
        if totals.n_damaged:
            return *held, "  damaged ", (text.count(totals.n_damaged), f"bold {self.palette.bad}")
        return *held, " of ", text.size(totals.disk_most_bytes)

    def _parts(self, totals: Totals) -> tuple[tuple[int, int, str], ...]:
        """State, blocks and colour of each part of the bar."""
        palette = self.palette
        return (
            (SHARED, totals.n_shared, palette.owners[0]),
            (USED, totals.n_used - totals.n_shared, palette.owners[0]),
            (PINNED, totals.n_pinned, palette.accent),
            (CACHED, totals.n_cached, palette.cached),
            (FREE, totals.n_free, palette.faint),
        )
