"""What waiting costs: time to first token, time between tokens, the queue, and the last step."""

from __future__ import annotations

from rich.text import Text

from tui import text
from tui.feed.model import Frame
from tui.widgets.paint import Painted


class LatencyCard(Painted):
    """A small table of percentiles over the newest values of the last minute, and the step."""

    def __init__(self) -> None:
        super().__init__(id="latency", classes="card")
        self._frame: Frame | None = None

    def on_mount(self) -> None:
        self.border_title = "Latency"

    def show(self, frame: Frame) -> None:
        self._frame = frame
        self.refresh()

    def render(self) -> Text:
        frame = self._frame
        if frame is None:
            return Text()
        palette, latency, totals = self.palette, frame.latency, frame.totals
        rows = [
            ("TTFT", text.duration(latency.ttft_p50_s), text.duration(latency.ttft_p95_s)),
            ("ITL", text.duration(latency.itl_p50_s), text.duration(latency.itl_p95_s)),
        ]
        result = Text(no_wrap=True)
        result.append(f"{'':5}{'p50':>7}{'p95':>8}\n", palette.faint)
        for label, p50, p95 in rows:
            result.append(f"{label:5}", palette.muted).append(f"{p50:>7}", f"bold {palette.text}")
            result.append(f"{p95:>8}\n", palette.text)
        result.append(f"{'step':5}", palette.muted)
        result.append(f"{text.duration(totals.last_step_s) if totals.last_step_tokens else text.NONE:>7}", palette.text)
        result.append(f"{text.count(totals.last_step_tokens):>5} tok", palette.muted)
        if self.size.height >= 6:
            queue = palette.warn if totals.n_waiting else palette.text
            result.append("\n\nrunning", palette.muted).append(f"{totals.n_running:>3}", f"bold {palette.text}")
            result.append("  queue", palette.muted).append(f"{totals.n_waiting:>3}", f"bold {queue}")
        return result
