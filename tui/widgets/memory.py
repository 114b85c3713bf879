"""The KV cache and the machine: how full, how often the prefix cache hits, what it costs."""

from __future__ import annotations

from rich.text import Text

from tui import text
from tui.feed.model import CACHED, FREE, SHARED, USED, Frame, Totals
from tui.look import MARKS
from tui.widgets.paint import Painted


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
        palette, totals = self.palette, frame.totals
        width, height = self.size
        used = totals.n_used / totals.n_blocks if totals.n_blocks else 0.0
        result = self._bar(totals, width - 5)
        result.append(f"{text.share(used):>5}\n", f"bold {palette.bad if used > 0.95 else palette.text}")
        result.append("prefix hits ", palette.muted)
        result.append(text.share(totals.hit_rate), f"bold {palette.good if totals.hit_rate else palette.text}")
        result.append(f"  {text.count(totals.cached_tokens)} tok\n", palette.muted)
        result.append("preempted ", palette.muted)
        result.append(text.count(totals.n_preemptions), f"bold {palette.warn if totals.n_preemptions else palette.text}")
        result.append("  evicted ", palette.muted).append(f"{text.count(totals.n_evictions)}\n", palette.text)
        process = frame.process
        result.append("cpu ", palette.muted).append(f"{process.cpu_cores:.1f}/{process.n_cores}", palette.text)
        result.append("  rss ", palette.muted).append(text.size(process.rss_bytes), palette.text)
        if height >= 6:
            result.append("\nKV ", palette.muted).append(text.size(frame.model.kv_bytes), palette.text)
            result.append("  weights ", palette.muted).append(text.size(frame.model.weights_bytes), palette.text)
            result.append("\nhost ", palette.muted)
            result.append(f"{text.size(process.host_used_bytes)} of {text.size(process.host_total_bytes)}", palette.text)
        result.no_wrap = True
        return result

    def _bar(self, totals: Totals, width: int) -> Text:
        palette = self.palette
        parts = (
            (SHARED, totals.n_shared, palette.owners[0]),
            (USED, totals.n_used - totals.n_shared, palette.owners[0]),
            (CACHED, totals.n_cached, palette.cached),
            (FREE, totals.n_free, palette.faint),
        )
        bar = Text()
        total, end, drawn = max(1, totals.n_blocks), 0, 0
        for state, n_blocks, colour in parts:
            end += n_blocks
            cells = max(round(end / total * width) - drawn, 1 if n_blocks and drawn < width else 0)
            bar.append(MARKS[state] * cells, colour)
            drawn += cells
        bar.truncate(width)
        bar.append(" " * (width - bar.cell_len))
        return bar
