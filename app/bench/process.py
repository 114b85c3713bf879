"""A server as a process of ours: started, waited for, held still while another one is measured, and ended for certain."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from app.bench.peers import Peer
from app.bench.wire import Endpoint
from app.client import served_names
from engine.errors import PagewellError

START_S = 600.0
END_S = 10.0


class ServerFailed(PagewellError):
    """A server ended, or was not ready in time; the message has the end of its log."""


class Server:
    """One run of a peer, in a session of its own so that an interrupt of ours does not reach it before we end it."""

    def __init__(self, peer: Peer, model: Path, threads: int, folder: Path) -> None:
        """Start it. `folder` gets its log and is its working directory. ServerFailed when the program cannot be run."""
        self.peer = peer
        self.port = _free_port()
        self.endpoint = Endpoint(f"http://127.0.0.1:{self.port}")
        self.log = folder / f"{peer.name}.log"
        home = folder / f"{peer.name}-home"
        home.mkdir(parents=True, exist_ok=True)
        self.command, env = peer.filled(model=model, port=self.port, threads=threads, home=home)
        self.first_answer_s = 0.0
        """From start to the end of its first answer; whoever asks it sets this."""
        self.began = time.perf_counter()
        with self.log.open("ab") as log:
            try:
                self.process = subprocess.Popen(
                    self.command, env=env, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            except OSError as error:
                raise ServerFailed(f"{peer.name} cannot be started: {error}") from error

    def wait_ready(self, timeout_s: float = START_S) -> float:
        """Seconds from start to ready. ServerFailed when it ends before, or is not ready in time."""
        while not self._answers():
            self.check(timeout_s)
            time.sleep(0.02)
        return time.perf_counter() - self.began

    async def served_name(self) -> str:
        """The first model that it offers."""
        names = await served_names(self.endpoint.url, None)
        if not names:
            raise ServerFailed(f"{self.peer.name} serves no model:\n{self.last_words()}")
        return names[0]

    def check(self, timeout_s: float | None = None) -> None:
        """ServerFailed when it does not run any more, or has run for longer than timeout_s."""
        if self.process.poll() is not None:
            raise ServerFailed(f"{self.peer.name} ended with status {self.process.returncode}:\n{self.last_words()}")
        if timeout_s is not None and time.perf_counter() - self.began > timeout_s:
            raise ServerFailed(f"{self.peer.name} is not ready after {timeout_s:.0f} s:\n{self.last_words()}")

    def has_ended(self, within_s: float) -> bool:
        """Whether it is gone; one that has just broken its connections may take a moment longer to be."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        return self.process.returncode is not None

    def pause(self) -> None:
        """Hold all its threads, so that nothing it does when idle takes time from the one that is measured."""
        if os.name == "posix":
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        if os.name == "posix":
            self._signal(signal.SIGCONT)

    def peak_bytes(self) -> int:
        """Most memory that its processes had resident, mapped files included: the sum of their peaks on Linux."""
        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
                    total += _peak(one)
        return total

    def last_words(self, n_lines: int = 8) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-n_lines:])

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", self.peer.ready_path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)


def end(servers: Iterable[Server]) -> None:
    """End these servers with all their processes. A second Ctrl-C does not keep them alive."""
    servers = list(servers)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for server in servers:
            server.resume()
            server._signal(signal.SIGTERM)
        deadline = time.monotonic() + END_S
        for server in servers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(max(0.1, deadline - time.monotonic()))
        for server in servers:
            server._signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
            server.process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _peak(process: psutil.Process) -> int:
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        memory = process.memory_info()
        return getattr(memory, "peak_wset", memory.rss)
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
