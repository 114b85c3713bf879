"""What belongs into every results file beside the figures: when, where, and with which versions."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import psutil

from app.machine import this_machine

ROOT = Path(__file__).parents[2]


def circumstances() -> dict[str, Any]:
    """Date, version, commit and machine. `busy` is the load average before the measurement, which should be near 0; `isa` the
    instruction-set level that PAGEWELL_ISA asks for."""
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "pagewell": metadata.version("pagewell"),
        "commit": commit(),
        "torch": metadata.version("torch"),
        "machine": asdict(this_machine()),
        "isa": os.environ.get("PAGEWELL_ISA"),
        "busy": round(psutil.getloadavg()[0], 2),
    }


def commit() -> str | None:
    """The checkout's commit, with "+" behind it when files differ from it; None outside a checkout."""
    if not (ROOT / ".git").exists():
        return None
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def write(path: Path, result: dict[str, Any]) -> None:
    """To a file, or to stdout where the path is "-"."""
    with click.open_file(str(path), "w", atomic=str(path) != "-") as file:
        file.write(json.dumps(result, indent=2) + "\n")


def _git(*args: str) -> str:
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
