"""A real `pagewell serve` process on a free port with the bundled model, shared by every end-to-end test of a session."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import models

ROOT = Path(__file__).parents[2]
START_S = 120
_ADDRESS = re.compile(r"http://[\d.]+:\d+")


@dataclass
class LiveServer:
    """A running server and what tests ask of it."""

    url: str
    process: subprocess.Popen[str]
    home: Path
    model: str = ""
    log: list[str] = field(default_factory=list)

    def stats(self) -> dict[str, Any]:
        """One frame of the statistics (see app.stats.frames)."""
        return httpx.get(f"{self.url}/api/stats", timeout=30).raise_for_status().json()

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name with labels, for example 'vllm:num_requests_running{model_name="x"}'."""
        text = httpx.get(f"{self.url}/metrics", timeout=30).raise_for_status().text
        rows = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in rows}

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry these labels."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name and all(w in k for w in wanted))

    def blocks_in_use(self) -> int:
        return int(self.metric("pagewell_kv_blocks", state="used"))

    def wait_idle(self, seconds: float = 30.0) -> None:
        """Return when nothing runs, nothing waits and no block is in use; AssertionError after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            samples = self.metrics()
            busy = {k: v for k, v in samples.items() if v and k.startswith(_BUSY)}
            if not busy:
                return
            assert time.monotonic() < deadline, f"not idle after {seconds} s: {busy}"
            time.sleep(0.05)


_BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting", 'pagewell_kv_blocks{model_name="smollm2",state="used"')


def surroundings(home: Path) -> dict[str, Any]:
    """Where a command runs that reads nobody's settings: `cwd`, an empty folder, and `env` with no setting in it."""
    nowhere = home / "nowhere"
    nowhere.mkdir(exist_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PAGEWELL_")}
    env |= {"PAGEWELL_HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    # Nor are models found that other programs of this person have.
    env |= {"HOME": str(home), "OLLAMA_MODELS": str(home / "ollama"), "HF_HOME": str(home / "hub")}
    env["HF_ENDPOINT"] = "http://127.0.0.1:9"  # and no hub is asked
    return {"cwd": nowhere, "env": env}


@contextmanager
def serve(home: Path, *options: str, model: Path | None = None) -> Iterator[LiveServer]:
    """Start `pagewell serve` with these options and yield it once the model is loaded; stopped at the end."""
    command = [sys.executable, "-m", "app.cli", "serve", str(model or models.smollm2()), "--port", "0"]
    command += ["--served-model-name", "smollm2", *options]
    process = subprocess.Popen(command, **surroundings(home), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    server = LiveServer("", process, home, model="smollm2")
    listening = threading.Event()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            server.log.append(line.rstrip())
            found = _ADDRESS.search(line)
            if found and not server.url:
                server.url = found[0]
                listening.set()
        listening.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        listening.wait(START_S)
        assert server.url, "the server did not start:\n" + "\n".join(server.log)
        _wait_ready(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(server: LiveServer) -> None:
    deadline = time.monotonic() + START_S
    while httpx.get(f"{server.url}/health/ready", timeout=30).status_code != 200:
        assert server.process.poll() is None and time.monotonic() < deadline, "\n".join(server.log)
        time.sleep(0.1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The shared server. Tests leave it idle (`server.wait_idle()`) and with its settings untouched."""
    with serve(tmp_path_factory.mktemp("server-home"), "--max-model-len", "2048") as live:
        yield live
