"""What stands in the middle of the screen when there is nothing to show: no server, no key, no model."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from tui.feed.client import Connection
from tui.feed.model import Frame
from tui.look import MODELS
from tui.text import plain, share, size
from tui.widgets.paint import Painted

_WIDTH = 62


class Notice(Painted):
    """A framed message: a headline and what to do about it."""

    DEFAULT_CSS = """
    Notice { width: 1fr; height: 1fr; align: center middle; content-align: center middle; }
    """

    def __init__(self) -> None:
        super().__init__(id="notice")
        self._text = Text()

    def show_connection(self, connection: Connection, url: str) -> None:
        """Why there is no feed, and how to get one."""
        palette = self.palette
        command, plain_text = f"bold {palette.accent}", palette.text
        serve = [("Start a server:", plain_text), ("  pagewell serve", command), ("", "")]
        elsewhere = [("or look at another one:", plain_text), ("  pagewell top --url http://HOST:PORT", command)]
        match connection.state:
            case "connecting":
                headline, advice = f"Connecting to {url} …", []
            case "refused":
                headline = f"The server at {url} wants an API key"
                advice = [("Give it the key that the server was started with:", plain_text)]
                advice += [("  pagewell top --api-key KEY", command)]
                advice += [("or, for the configured server, set PAGEWELL_API_KEY.", plain_text)]
            case "foreign":
                headline = f"What answers at {url} has no stats feed"
                advice = [("It may be another program, or an older Pagewell.", plain_text), ("", ""), *serve, *elsewhere]
            case "lost":
                headline = f"The server at {url} is gone"
                advice = [("If it was stopped, start it again:", plain_text), ("  pagewell serve", command)]
            case _:
                headline, advice = f"Nothing answers at {url}", [*serve, *elsewhere]
        tail = (
            f"{plain(connection.detail, _WIDTH)} · try {connection.n_tries} · next in {connection.retry_s:g} s"
            if connection.n_tries
            else ""
        )
        self._write(headline, palette.bad if connection.n_tries else palette.text, advice, tail)

    def show_model(self, frame: Frame) -> None:
        """Which state the model is in, when it is not ready."""
        palette, model = self.palette, frame.model
        look = MODELS.get(model.state, MODELS["failed"])
        name = plain(model.name, 40) or "The model"
        advice: list[tuple[str, str]] = []
        match model.state:
            case "loading":
                filled = round(model.progress * 40)
                advice = [("━" * filled + "─" * (40 - filled) + f" {share(model.progress):>4}", palette.accent)]
                headline = f"{name} is loading"
            case "waiting":
                headline = f"{name} waits for room"
                names = ", ".join(plain(name, 30) for name in model.waits_for)
                advice = [(f"Answers of {names} end first." if names else "Another model is loading.", palette.text)]
            case "unloaded":
                headline = f"{name} is unloaded"
                advice = [("Nobody asked for a while, so its memory was given back.", palette.text)]
                advice += [("The next request loads it again.", palette.text)]
            case _:
                headline = f"{name} is not available"
                advice = [(plain(line, _WIDTH), palette.text) for line in model.error.splitlines()[:6]]
        process = frame.process
        memory = f"memory {size(process.host_used_bytes)} of {size(process.host_total_bytes)} in use"
        self._write(f"{look.mark} {headline}", getattr(palette, look.colour), advice, memory)

    def _write(self, headline: str, colour: str, advice: Sequence[tuple[str, str]], tail: str) -> None:
        palette = self.palette
        lines = [Text(headline, f"bold {colour}"), Text()] + [Text(line, style) for line, style in advice]
        if tail:
            lines += [Text(), Text(tail, palette.faint)]
        width = max(line.cell_len for line in lines)
        for line in lines:
            line.append(" " * (width - line.cell_len))
        self._text = Text("\n").join(lines)
        self.refresh()

    def render(self) -> Text:
        return self._text
