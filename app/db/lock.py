"""One server writes in a data folder: a lock beside the database that the system takes away when its holder ends, however."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from engine.errors import PagewellError

_LOCKED_BYTE = 1 << 20
"""Windows keeps others from reading what is locked: the holder's number stands before it."""


class DatabaseInUse(PagewellError):
    """Another server has this database open."""


class FileLock:
    """Held from `take` to `release`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> None:
        """Raises DatabaseInUse."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(file)
        except OSError as error:
            holder = os.read(file, 32).decode("ascii", "replace").strip()
            os.close(file)
            raise DatabaseInUse(
                f"Another Pagewell (process {holder or 'unknown'}) has the chats in {self._path.parent} open.",
                "Use or stop that one, or give this one a folder of its own: set PAGEWELL_HOME.",
            ) from error
        os.ftruncate(file, 0)
        os.write(file, f"{os.getpid()}\n".encode())
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        os.lseek(file, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
