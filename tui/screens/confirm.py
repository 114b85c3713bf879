"""A question with two answers, before something is ended."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static


class Confirm(ModalScreen[bool]):
    """Gives True for y only: enter comes too easily."""

    BINDINGS = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm > Vertical { width: 60; max-width: 90%; height: auto; border: round $error; background: $pw-surface; padding: 1 2; }
    Confirm Static { width: 1fr; height: auto; }
    Confirm .answers { color: $pw-muted; margin-top: 1; }
    """

    def __init__(self, question: str, detail: str) -> None:
        super().__init__()
        self._question, self._detail = question, detail

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(self._question, markup=False)
            yield Static(self._detail, markup=False, classes="answers")
            yield Static("y  yes      n  no", markup=False, classes="answers")

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)
