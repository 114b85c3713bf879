"""Whether the terminal is light: asked of a pseudo-terminal that answers as terminals do."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from tui.terminal import has_light_background

pty = pytest.importorskip("pty")

ATTRIBUTES = b"\x1b[?62;22c"


@pytest.fixture
def terminal(monkeypatch):
    """A function that makes standard input and output a terminal with this answer to the query."""
    master, slave = pty.openpty()
    answer = [b""]

    def respond() -> None:
        query = b""
        while not query.endswith(b"\x1b[c"):
            query += os.read(master, 100)
        os.write(master, answer[0])

    thread = threading.Thread(target=respond, daemon=True)
    thread.start()
    with os.fdopen(slave, "r+b", buffering=0) as raw, open(os.dup(slave), "w") as out:

        def answers(text: bytes) -> None:
            answer[0] = text
            # Only now: pytest puts its own streams in place between a fixture and its test.
            monkeypatch.setattr(sys, "stdin", raw)
            monkeypatch.setattr(sys, "stdout", out)

        monkeypatch.delenv("COLORFGBG", raising=False)
        yield answers
    thread.join(5)
    os.close(master)


@pytest.mark.parametrize(
    ("colour", "light"),
    [
        (b"rgb:ffff/ffff/ffff", True),
        (b"rgb:fdfd/f6f6/e3e3", True),
        (b"rgb:0000/0000/0000", False),
        (b"rgb:28/2c/34", False),
        (b"rgba:ff/ff/ff/ff", True),
    ],
)
def test_the_background_colour_decides(terminal, colour, light):
    terminal(b"\x1b]11;" + colour + b"\x1b\\" + ATTRIBUTES)
    assert has_light_background(2.0) is light


def test_a_terminal_that_knows_no_colours_keeps_nobody_waiting(terminal):
    terminal(ATTRIBUTES)
    assert has_light_background(60.0) is False


def test_a_terminal_that_says_nothing_is_dark_unless_the_environment_knows(terminal, monkeypatch):
    terminal(b"")
    monkeypatch.setenv("COLORFGBG", "0;15")
    assert has_light_background(0.05) is True


def test_without_a_terminal_nothing_is_asked(monkeypatch, tmp_path):
    monkeypatch.delenv("COLORFGBG", raising=False)
    with open(tmp_path / "in", "w+") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert has_light_background() is False
