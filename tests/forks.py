"""Processes that start within milliseconds, to be killed by the hundred: forks of one that has imported what they need."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
Ready = Callable[[], None]
"""To be called by a fork that has set itself up."""


class Forks:
    """Starts forks that call one function, as function(ready, *texts)."""

    def __init__(self, mother: subprocess.Popen[str]) -> None:
        self._mother = mother
        self._pids: set[int] = set()

    def start(self, *texts: str) -> int:
        """The number of a new process, once it is ready."""
        assert self._mother.stdin is not None and self._mother.stdout is not None
        self._mother.stdin.write("\t".join(texts) + "\n")
        self._mother.stdin.flush()
        pid = int(self._mother.stdout.readline() or 0)
        assert pid, "it ended before it was ready"
        self._pids.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        """With SIGKILL; returns once it is gone."""
        self._pids.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        while self.lives(pid):
            time.sleep(0.0005)

    @staticmethod
    def lives(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    def kill_all(self) -> None:
        for pid in list(self._pids):
            self.kill(pid)


@contextmanager
def forks_of(function: str) -> Iterator[Forks]:
    """function: 'module:name'."""
    command = [sys.executable, "-m", "tests.forks", function]
    mother = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    forks = Forks(mother)
    try:
        yield forks
    finally:
        forks.kill_all()
        mother.kill()
        mother.communicate()


def _main(function: str) -> None:
    module, _, name = function.partition(":")
    run = getattr(importlib.import_module(module), name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead need no wait
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                run(lambda: os.write(1, b"%d\n" % os.getpid()), *line.rstrip("\n").split("\t"))
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)


if __name__ == "__main__":
    _main(sys.argv[1])
