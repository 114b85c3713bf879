"""Tokens per second now and over the last five minutes: generation upwards, prefill hanging below."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text

from tui import text
from tui.feed.model import HISTORY_S, Frame, Point
from tui.graph import braille, nice_top, resample
from tui.line import Part, fit
from tui.widgets.paint import Painted


class Throughput(Painted):
    """A line of figures above a braille graph."""

    def __init__(self) -> None:
        super().__init__(id="throughput", classes="card")
        self._frame: Frame | None = None
        self._history: Sequence[Point] = ()

    def on_mount(self) -> None:
        self.border_title = "Throughput  tok/s"

    def show(self, frame: Frame, history: Sequence[Point]) -> None:
        self._frame, self._history = frame, history
        self.refresh()

    def render(self) -> Text:
        frame = self._frame
        if frame is None:
            return Text()
        palette, (width, height) = self.palette, self.size
        rates = frame.rates
        figures = fit(
            [
                Part(f"↑ out {text.rate(rates.output_tok_s)}", f"bold {palette.output[-2]}"),
                Part(f"↓ prefill {text.rate(rates.prompt_tok_s)}", f"bold {palette.prompt[-2]}"),
            ],
            [
                Part(f"{text.rate(rates.steps_s)} steps/s", palette.muted, 2),
                Part(f"{text.share(rates.busy)} busy", palette.muted, 1),
            ],
            width,
        )
        lines = [figures]
        room = height - 1
        n_down = room // 3 if room >= 3 else 0
        lines += self._graph(lambda p: p.output_tok_s, room - n_down, palette.output, hanging=False)
        lines += self._graph(lambda p: p.prompt_tok_s, n_down, palette.prompt, hanging=True)
        return Text("\n").join(lines)

    def _graph(self, value: Callable[[Point], float], height: int, gradient: Sequence[str], *, hanging: bool) -> list[Text]:
        width = self.size.width
        if height <= 0 or width <= 0 or self._frame is None:
            return []
        samples = [(point.time_s, value(point)) for point in self._history]
        values = resample(samples, self._frame.time_s, HISTORY_S, 2 * width)
        top = nice_top(max(values))
        lines = []
        for row, line in enumerate(braille(values, height, top, hanging=hanging)):
            level = row if hanging else height - 1 - row
            lines.append(Text(line, gradient[min(len(gradient) - 1, level * len(gradient) // height)], no_wrap=True))
        self._label(lines[-1 if hanging else 0], text.count(top), gradient[1])
        return lines

    @staticmethod
    def _label(line: Text, label: str, colour: str) -> None:
        """Write the scale over the graph's oldest end, where nothing is drawn yet or it matters least."""
        rest = line[len(label) + 1 :]
        line.plain = ""
        line.append(label, colour).append(" ").append_text(rest)
