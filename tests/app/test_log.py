"""The log: one JSON object a line for programs, lines on a terminal; of our messages and of the libraries' that matter."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import logging, structlog
from app import log
log.configure("info")
logging.getLogger("app.models.host").info("Loaded %s", "m", extra={"seconds": 2})
logging.getLogger("app.models.host").debug("not shown")
logging.getLogger("httpx").info("not shown either")
structlog.get_logger("app.chat").warning("odd", chat="c1")
def fail():
    key = "".join(["hu", "sh"])
    return {"key": key}["none"]
try:
    fail()
except KeyError:
    logging.getLogger("app.x").exception("broke")
"""


def test_lines_off_a_terminal_are_json_with_level_time_and_extras() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["Loaded m", "odd", "broke"]
    assert [line["level"] for line in lines] == ["info", "warning", "error"]
    assert lines[0]["seconds"] == 2 and lines[1]["chat"] == "c1"
    assert "KeyError" in lines[2]["exception"] and "hush" not in result.stderr
    assert all(line["timestamp"] for line in lines)


def test_a_traceback_on_a_terminal_shows_no_values_of_variables() -> None:
    terminal, child = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=ROOT, stderr=child):
        os.close(child)
        shown = b""
        try:
            while data := os.read(terminal, 4096):
                shown += data
        except OSError:  # how Linux says that the other end is closed
            os.close(terminal)
    assert b"KeyError" in shown and b"Traceback" in shown
    assert b"hush" not in shown
