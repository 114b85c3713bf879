"""SharedStore: blocks of KV in shared memory, on their way from one process to another.

A block is a file in a folder in memory, complete when it has its name, which is its key. Header, little-endian: magic (8 bytes),
size of the payload (u64), its CRC-32 (u32); then the payload. The system is what keeps this right whoever dies when: a name
appears at once or not at all, the memory of a removed file lives until its last reader closes it, and nobody holds a lock.

A block has a lease: it stays for so long after it was written, or asked for, unless somebody takes it, and goes then. So does
what a dead process left half written. Whoever writes or sweeps returns what is over, of all processes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from engine.kv.tiers.connector import Buffers
from engine.kv.tiers.shared_folder import BLOCK, PARTIAL, kinds

log = logging.getLogger(__name__)

MAGIC = b"PAGESH\x00\x01"
_HEADER = struct.Struct("<8sQI")


class SharedStore:
    """Blocks by key. Every method may be called from any thread.

    folder: of this kind of KV (see SharedFolder.kind). max_bytes: of all kinds together; of two processes that write at once,
    each may exceed it by what the other one is about to write.
    """

    def __init__(self, folder: Path, max_bytes: int, lease_s: float) -> None:
        self.max_bytes = max_bytes
        self.lease_s = lease_s
        self.n_errors = 0
        """Blocks that turned out to be damaged."""
        self._folder = folder
        self._names = itertools.count()
        # Not the process's number alone: containers may share the memory, and each has its process 1.
        self._writer = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._refused: str | None = None
        """Why blocks are not taken, as it was said."""

    def __contains__(self, key: bytes) -> bool:
        return os.path.exists(self._path(key))

    def write(self, blocks: Sequence[tuple[bytes, Buffers]]) -> int:
        """Keep blocks, in order, as far as there is room; returns how many are there now."""
        room = self.max_bytes - self.sweep()
        for n, (key, buffers) in enumerate(blocks):
            n_bytes = _HEADER.size + sum(buffer.nbytes for buffer in buffers)
            if self.renew(key):
                continue
            if n_bytes > room:
                self._refuse(f"all of its {self.max_bytes >> 20} MiB are taken (--kv-shared-space)")
                return n
            try:
                self._write(key, buffers)
            except OSError as error:
                self._refuse(error.strerror or str(error))
                return n
            room -= n_bytes
        self._refused = None
        return len(blocks)

    def renew(self, key: bytes) -> bool:
        """Begin the lease of a block anew; False where it is not there."""
        try:
            os.utime(self._path(key))
        except OSError:
            return False
        return True

    def _write(self, key: bytes, buffers: Buffers) -> None:
        partial = self._folder / f"{self._writer}-{next(self._names)}{PARTIAL}"
        checksum = 0
        for buffer in buffers:
            checksum = zlib.crc32(buffer, checksum)
        header = _HEADER.pack(MAGIC, sum(buffer.nbytes for buffer in buffers), checksum)
        try:
            file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                for buffer in (memoryview(header), *buffers):
                    while buffer:
                        buffer = buffer[os.write(file, buffer) :]
            finally:
                os.close(file)
            os.rename(partial, self._path(key))
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise

    def read(self, key: bytes, buffers: Buffers) -> bool:
        """Fill buffers with a block's payload. False where it is gone, of another size, or damaged, and then it is removed."""
        try:
            file = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            good = _read(file, buffers)
        except OSError:
            good = False
        finally:
            os.close(file)
        if not good:
            self.n_errors += 1
            self.take([key])
        return good

    def take(self, keys: Sequence[bytes]) -> None:
        """Remove blocks: they are elsewhere now."""
        for key in keys:
            with contextlib.suppress(OSError):
                os.unlink(self._path(key))

    def clear(self) -> None:
        """Remove all blocks of this kind."""
        with contextlib.suppress(OSError):
            self.take([bytes.fromhex(path.stem) for path in self._folder.glob(f"*{BLOCK}")])

    def sweep(self) -> int:
        """Remove what has outlived its lease, of every kind; returns the bytes of the rest."""
        oldest, total = time.time() - self.lease_s, 0
        for kind in _listed(self._folder.parent):
            with contextlib.suppress(OSError), os.scandir(kind) as files:
                for file in files:
                    if not file.name.endswith((BLOCK, PARTIAL)):
                        continue
                    with contextlib.suppress(OSError):  # somebody else was faster
                        status = file.stat(follow_symlinks=False)
                        if status.st_mtime < oldest:
                            os.unlink(file.path)
                        else:
                            total += status.st_size
        return total

    def _refuse(self, why: str) -> None:
        if self._refused != why:
            log.warning("KV is not handed over, and will be computed twice: shared memory takes no more: %s", why)
        self._refused = why

    def _path(self, key: bytes) -> str:
        return f"{self._folder}/{key.hex()}{BLOCK}"


def _listed(folder: Path) -> list[Path]:
    try:
        return list(kinds(folder))
    except OSError:
        return []


def _read(file: int, buffers: Buffers) -> bool:
    """Whether the file is a whole block of this size, which is in the buffers then."""
    header = os.read(file, _HEADER.size)
    if len(header) < _HEADER.size:
        return False
    magic, n_bytes, checksum = _HEADER.unpack(header)
    if magic != MAGIC or n_bytes != sum(buffer.nbytes for buffer in buffers):
        return False
    found = 0
    for buffer in buffers:
        left = buffer
        while left:
            n = os.readv(file, [left])
            if n == 0:
                return False
            left = left[n:]
        found = zlib.crc32(buffer, found)
    return found == checksum and not os.read(file, 1)
