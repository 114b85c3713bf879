"""The log as programs read it: one JSON object a line, of our messages and of the libraries' that matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import logging, structlog
from app import log
log.configure("info")
logging.getLogger("app.host").info("Loaded %s", "m", extra={"seconds": 2})
logging.getLogger("app.host").debug("not shown")
logging.getLogger("httpx").info("not shown either")
structlog.get_logger("app.chat").warning("odd", chat="c1")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("app.x").exception("broke")
"""


def test_lines_off_a_terminal_are_json_with_level_time_and_extras() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["Loaded m", "odd", "broke"]
    assert [line["level"] for line in lines] == ["info", "warning", "error"]
    assert lines[0]["seconds"] == 2 and lines[1]["chat"] == "c1"
    assert "ZeroDivisionError" in lines[2]["exception"]
    assert all(line["timestamp"] for line in lines)
