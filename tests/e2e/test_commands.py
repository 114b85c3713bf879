"""The commands that talk to a server or load a model, for real: chat, bench serve, top --once, doctor."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from app import paths
from tests import models
from tests.e2e.server import LiveServer, serve, surroundings


def here(**env: str) -> dict[str, Any]:
    """The surroundings of a command in a test."""
    place = surroundings(Path(os.environ["PAGEWELL_HOME"]))
    return {**place, "env": place["env"] | env}


def pagewell(*args: str, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app.cli", *args]
    return subprocess.run(command, **here(**env), input=stdin, capture_output=True, text=True, timeout=300, check=False)


class Terminal:
    """A command on a terminal of its own: type, and wait for what appears."""

    def __init__(self, *args: str) -> None:
        self._fd, child = pty.openpty()
        command = [sys.executable, "-m", "app.cli", *args]
        self.process = subprocess.Popen(
            command, **here(), stdin=child, stdout=child, stderr=child, start_new_session=True, preexec_fn=_own
        )
        os.close(child)
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, pattern: str, seconds: float = 120) -> re.Match[str]:
        """The first match in what appeared since the last match."""
        deadline = time.monotonic() + seconds
        while not (match := re.search(pattern, self.text)):
            assert time.monotonic() < deadline, f"{pattern!r} did not appear in {self.text!r}"
            if select.select([self._fd], [], [], 0.1)[0]:
                self.text += os.read(self._fd, 4096).decode(errors="replace")
        self.text = self.text[match.end() :]
        return match


def _own() -> None:
    """Make the new terminal the process's controlling one, so that Ctrl-C reaches it."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_commands_here_read_nobodys_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWELL_PORT", "1234")
    shown = pagewell("settings").stdout
    assert "Settings file: none" in shown and "port = 8000" in shown
    assert not any(here()["cwd"].iterdir())


def test_chat_answers_a_pipe_from_the_running_server(server: LiveServer) -> None:
    result = pagewell("chat", "--url", server.url, "--max-tokens", "6", "--temperature", "0", stdin="Say hello.")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert (
        result.stdout
        == pagewell("chat", "--url", server.url, "--max-tokens", "6", "--temperature", "0", "-m", "Say hello.").stdout
    )


def test_chat_loads_the_model_itself_where_no_server_runs() -> None:
    options = ("--max-tokens", "4", "--temperature", "0", "--max-model-len", "256", "-m", "Say hello.")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        result = pagewell("chat", str(models.smollm2()), *options, PAGEWELL_PORT=str(silent.getsockname()[1]))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_chat_on_a_terminal_stops_an_answer_at_ctrl_c_and_goes_on(server: LiveServer) -> None:
    terminal = Terminal("chat", "--url", server.url)
    terminal.wait_for("> ")
    terminal.type("Count from one to one thousand, one number a line.\n")
    terminal.wait_for(r"thousand.*\n.*\w")
    terminal.type("\x03")
    terminal.wait_for("stopped")
    terminal.wait_for("> ")
    server.wait_idle(10)
    terminal.type("/exit\n")
    assert terminal.process.wait(20) == 0


def test_bench_serve_measures_and_writes_json(server: LiveServer, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    shape = (
        "--requests",
        "3",
        "--concurrency",
        "2",
        "--prompt-len",
        "8",
        "--prefix-len",
        "48",
        "--output-len",
        "4",
        "--warmup",
        "0",
    )
    result = pagewell("bench", "serve", "--url", server.url, *shape, "--json", str(path))
    assert result.returncode == 0, result.stderr
    data = json.loads(path.read_text())
    figures = data["figures"]
    assert (figures["n_failed"], figures["output_tokens"], figures["concurrency"]) == (0, 12, 2)
    assert figures["cached_tokens"] > 0, "three requests share a prefix of 48 words"
    assert figures["ttft_s"]["p50"] > 0 and figures["itl_s"]["p99"] > 0
    assert data["machine"]["n_threads"] >= 1
    assert "first token, ms" in result.stderr


def test_top_once_prints_json_for_scripts(server: LiveServer) -> None:
    result = pagewell("top", "--url", server.url, "--once", "--json")
    assert result.returncode == 0, result.stderr
    assert isinstance(json.loads(result.stdout), dict)


def test_doctor_tries_the_model_and_says_which_kernels_ran() -> None:
    result = pagewell("doctor", str(models.smollm2()), "--max-model-len", "256", "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert "256 tokens" in report["sections"]["model"]["fits"]
    assert any(name.startswith("paged_attention") for name in report["sections"]["kernels"])
    assert report["sections"]["versions"]["torch"].startswith("2.13.0")


def test_a_damaged_model_ends_serve_at_once(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"no GGUF at all")
    result = pagewell("serve", str(tmp_path / "bad.gguf"), "--port", "0")
    assert result.returncode == 2
    assert "not a GGUF file" in result.stderr and "Traceback" not in result.stderr


def test_a_first_load_that_fails_ends_serve_with_the_reason() -> None:
    result = pagewell("serve", str(models.smollm2()), "--port", "0", "--max-model-len", "99999")
    assert result.returncode == 2
    assert result.stderr.count("made for 8,192 tokens") == 1 and "Traceback" not in result.stderr
    assert "Pagewell serves" not in result.stderr


def test_a_damaged_database_ends_serve_with_the_remedy(pagewell_home: Path) -> None:
    paths.database_path().parent.mkdir(parents=True, exist_ok=True)
    paths.database_path().write_bytes(b"no database at all" * 100)
    result = pagewell("serve", str(models.smollm2()), "--port", "0")
    assert result.returncode == 2
    assert "cannot be opened" in result.stderr and "Traceback" not in result.stderr


def test_a_server_that_is_stopped_ends_every_open_stream_in_order(tmp_path: Path) -> None:
    with serve(tmp_path, "--max-model-len", "2048") as server, httpx.Client(base_url=server.url, timeout=60) as http:
        body = {"messages": [{"role": "user", "content": "Count to a million."}], "stream": True, "ignore_eos": True}
        with (
            http.stream("GET", "/api/stats/stream") as feed,
            http.stream("GET", "/ui/events", params={"after": "stale", "tab": "t"}) as page,
            http.stream("POST", "/v1/chat/completions", json=body) as answer,
        ):
            lines = answer.iter_lines()
            while '"content":""' in next(line for line in lines if line.startswith("data")):
                pass
            server.process.terminate()
            *_, last = [line for line in lines if line]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "generation_failed"
            assert feed.read() and page.read()
        server.process.wait(10)
    assert not [line for line in server.log if "Traceback" in line or "Exception" in line]


def test_ctrl_c_ends_serve_in_order() -> None:
    terminal = Terminal("serve", str(models.smollm2()), "--port", "0", "--max-model-len", "256")
    terminal.wait_for("Ctrl-C stops it")
    terminal.type("\x03")
    assert terminal.process.wait(30) == 0
