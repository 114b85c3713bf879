"""The first line: which model, in which state, where, and how fresh the picture is."""

from __future__ import annotations

from rich.text import Text

from tui import text
from tui.feed.client import Connection
from tui.feed.model import Frame
from tui.line import Part, fit
from tui.look import MODELS
from tui.widgets.paint import Painted


class HeaderLine(Painted):
    """Left the model, right the line to the server."""

    DEFAULT_CSS = """
    HeaderLine { height: 1; padding: 0 1; background: $pw-surface; }
    """

    def __init__(self, url: str) -> None:
        super().__init__(id="header")
        self._where = url.removeprefix("http://")
        self._frame: Frame | None = None
        self._connection = Connection("connecting")
        self._frozen = False
        self._rate = 4.0

    def show(self, frame: Frame | None, connection: Connection, *, frozen: bool, rate: float) -> None:
        self._frame, self._connection, self._frozen, self._rate = frame, connection, frozen, rate
        self.refresh()

    def render(self) -> Text:
        palette = self.palette
        left = [Part("▦ Pagewell", f"bold {palette.accent}")]
        right = []
        if self._frame is not None:
            left += self._model_parts(self._frame)
            right.append(Part(f"up {text.age(self._frame.process.up_s)}", palette.muted, 4))
        right.append(Part(self._where, palette.muted, 3))
        right.append(self._freshness())
        return fit(left, right, self.size.width)

    def _model_parts(self, frame: Frame) -> list[Part]:
        palette, model = self.palette, frame.model
        look = MODELS.get(model.state, MODELS["failed"])
        state = f"{look.mark} {look.label}"
        if model.state == "loading":
            state += f" {text.share(model.progress)}"
        parts = [
            Part(text.plain(model.name, 40), f"bold {palette.text}", 1),
            Part(state, getattr(palette, look.colour)),
        ]
        if model.state == "ready":
            parts += [
                Part(text.plain(model.quantization, 20), palette.muted, 5),
                Part(f"{text.count(model.n_params)} params" if model.n_params else "", palette.muted, 7),
                Part(f"{model.max_model_len:,} window", palette.muted, 6),
            ]
        for other in frame.models[1:]:
            look = MODELS.get(other.state, MODELS["failed"])
            share = f" {text.share(other.progress)}" if other.state == "loading" else ""
            parts.append(Part(f"{look.mark} {text.plain(other.name, 24)}{share}", getattr(palette, look.colour), 2))
        return parts

    def _freshness(self) -> Part:
        palette, frame = self.palette, self._frame
        if self._connection.state != "live":
            return Part("○ no feed" if frame is None else "○ feed lost", f"bold {palette.bad}")
        if self._frozen:
            return Part("❚❚ frozen", f"bold {palette.warn}")
        if frame is not None and frame.age_s >= 1.0:
            return Part(f"◐ busy, figures {text.age(frame.age_s)} old", palette.warn)
        return Part(f"● live {self._rate:g}/s", palette.good)
