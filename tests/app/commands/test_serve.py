"""`pagewell serve` ends with a sentence where it cannot serve."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from app.db.database import Database
from tests import models

ROOT = Path(__file__).parents[3]


def test_a_second_server_on_the_same_chats_ends_with_2_and_the_remedy(tmp_path: Path) -> None:
    Database(tmp_path / "data" / "pagewell.db").claim()
    command = [sys.executable, "-m", "app.cli", "serve", str(models.smollm2()), "--port", "0"]
    environment = {**os.environ, "PAGEWELL_HOME": str(tmp_path)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert f"Another Pagewell (process {os.getpid()})" in result.stderr and "set PAGEWELL_HOME" in result.stderr
    assert "Traceback" not in result.stderr
