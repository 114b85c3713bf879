"""SharedFolder: a person's own folder in shared memory, there for as long as a process uses it.

Each process holds a lock on it, which the system takes back however the process ends. Who comes when nobody is there removes
what the dead have left, and who leaves last removes everything.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from engine.errors import ConfigError

if sys.platform != "win32":
    import fcntl

LOCK = "users.lock"
BLOCK, PARTIAL, SOCKET = ".kv", ".partial", ".sock"
"""Ends of the names of a whole block, of one being written, and of the socket of a process that computes prompts."""
KIND_DIGITS = 16
"""Of the hexadecimal name of a kind; a socket's path must be short."""
MOST_PATH = 65
_KIND = re.compile(rf"[0-9a-f]{{{KIND_DIGITS}}}")


class SharedFolder:
    """`path` is a folder that belongs to this person alone, and in it one for each kind of KV: model, format, version."""

    def __init__(self, base: Path | None = None) -> None:
        """base: a folder in memory. Raises ConfigError where none of our own can be had there."""
        base = base or _memory()
        self.path = base / f"pagewell-{os.getuid()}"
        if len(os.fsencode(self.path)) > MOST_PATH:
            raise ConfigError(
                f"The path {self.path} is too long: sockets lie there, whose paths may have about a hundred bytes.",
                "Set --kv-shared-folder to a shorter one.",
            )
        try:
            self._lock: int | None = self._enter()
        except OSError as error:
            raise ConfigError(
                f"Shared memory at {self.path} cannot be used: {error.strerror or error}.",
                "Set --kv-shared-folder to a folder in memory that can be written.",
            ) from error

    def kind(self, name: str) -> Path:
        """The folder of one kind of KV, made where it is missing; name: the first digits of ModelInfo.kv_kind."""
        assert _KIND.fullmatch(name)
        folder = self.path / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def release(self) -> None:
        """Leave it; everything in it goes when nobody else is there."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        try:
            if _is_alone(lock) and self._is_current(lock):
                with contextlib.suppress(OSError):  # somebody has come meanwhile, or something else lies there
                    self._empty()
                    (self.path / LOCK).unlink()
                    self.path.rmdir()
        finally:
            os.close(lock)

    def _enter(self) -> int:
        while True:
            self._make()
            try:
                lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:  # who left last has removed the folder since
                continue
            try:
                if _is_alone(lock) and self._is_current(lock):
                    self._empty()
                fcntl.flock(lock, fcntl.LOCK_SH)
                if self._is_current(lock):
                    return lock
            except BaseException:
                os.close(lock)  # else everybody who comes later waits for it
                raise
            os.close(lock)

    def _make(self) -> None:
        """In a folder that everybody may write to, somebody else may have made it before."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ConfigError(
                f"{self.path} is no folder that only you may use, and what was said can be guessed from the KV in it.",
                f"Remove {self.path}, or set --kv-shared-folder to another place.",
            )

    def _is_current(self, lock: int) -> bool:
        """Whether the lock still is the file of that name."""
        try:
            return os.path.samestat(os.fstat(lock), (self.path / LOCK).stat())
        except FileNotFoundError:
            return False

    def _empty(self) -> None:
        for kind in kinds(self.path):
            for path in kind.iterdir():
                if path.suffix in (BLOCK, PARTIAL, SOCKET):
                    path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else lies there, or somebody has come
                kind.rmdir()


def kinds(folder: Path) -> Iterator[Path]:
    """The folders of all kinds of KV."""
    for path in folder.iterdir():
        if _KIND.fullmatch(path.name):
            yield path


def _memory() -> Path:
    """Where files are in memory; without such a place they are at least gone when the machine is started again."""
    shm = Path("/dev/shm")
    return shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())


def _is_alone(lock: int) -> bool:
    """Take the lock for ourselves if nobody has it. If somebody has, our own share of it is gone too: of two that leave at once,
    the second one is alone.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
