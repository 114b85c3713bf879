"""DiskStore: blocks of KV in files that outlive the process.

Blocks are written in segments, each a file that is complete when it has its name: header, then payloads of one size. The header,
little-endian: magic (8 bytes), number of blocks (u32), size of the header (u32), size of a payload (u64), then for each block its
key (32 bytes) and its payload's SHA-256 (32 bytes), then the SHA-256 of all that. Payloads begin at the next multiple of 4096.

Nothing that is read is trusted: a segment whose header does not check is removed, a payload that does not is a miss. Segments
of all models share one folder, with a subfolder for what may be read together, and one limit: the least recently used segments
are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import psutil

from engine.kv.connector import Buffers

log = logging.getLogger(__name__)

MAGIC = b"PAGEKV\x00\x01"
ALIGN = 4096
_FIXED = struct.Struct("<8sIIQ")
_KEY = 32
_DIGEST = 32
_MOST_BLOCKS = 1 << 16
SUFFIX, PARTIAL = ".kv", ".partial"


@dataclass(slots=True)
class _Segment:
    path: Path
    n_bytes: int
    used_s: float
    """When it was last written or read, as the file's time of change."""
    places: dict[bytes, tuple[int, bytes]]
    """Key -> (offset, SHA-256) of each payload; empty for segments of others."""


class DiskStore:
    """Blocks by key. Every method may be called from any thread; reads and writes block.

    folder: all models'; `kind` names what may be read together and becomes a subfolder; payload_bytes: of each block.
    """

    def __init__(self, folder: Path, kind: str, payload_bytes: int, max_bytes: int) -> None:
        """Reads the headers of what is there. Raises OSError where the folder cannot be made."""
        self.max_bytes = max_bytes
        self.n_errors = 0
        """Segments and payloads that turned out to be damaged."""
        self._own = folder / kind
        self._payload_bytes = payload_bytes
        self._lock = threading.Lock()
        self._segments: dict[Path, _Segment] = {}
        self._index: dict[bytes, _Segment] = {}
        self._n_written = 0
        # With the time: in a container the next process may have the same number.
        self._writer = f"{os.getpid()}-{psutil.Process().create_time():.0f}-{os.urandom(4).hex()}"
        for path in (folder, self._own):  # what was said in a conversation can be guessed from its KV
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(folder.glob(f"*/*{SUFFIX}")):
            self._take_in(path)
        for path in folder.glob(f"*/*{PARTIAL}"):
            if not _is_alive(path):
                path.unlink(missing_ok=True)
        self._make_room(0)

    @property
    def n_blocks(self) -> int:
        return len(self._index)

    @property
    def n_bytes(self) -> int:
        """Of all models' segments."""
        with self._lock:
            return sum(segment.n_bytes for segment in self._segments.values())

    def __contains__(self, key: bytes) -> bool:
        return key in self._index

    def write(self, blocks: Sequence[tuple[bytes, Buffers]]) -> bool:
        """Store blocks as one segment; what is stored already is left out. False where the disk did not take it."""
        blocks = [(key, buffers) for key, buffers in blocks if key not in self._index]
        if not blocks:
            return True
        header, first = _header(blocks, self._payload_bytes)
        n_bytes = first + len(blocks) * self._payload_bytes
        if n_bytes > self.max_bytes:
            return False
        self._make_room(n_bytes)
        with self._lock:
            self._n_written += 1
            name = f"{self._writer}-{self._n_written}"
        path, partial = self._own / (name + SUFFIX), self._own / (name + PARTIAL)
        try:
            with partial.open("wb", buffering=0) as file:
                _write_all(file, [memoryview(header), memoryview(bytes(first - len(header)))])
                for _, buffers in blocks:
                    _write_all(file, buffers)
            partial.rename(path)
        except OSError as error:
            log.warning("KV blocks could not be written to %s: %s", self._own, error)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            return False
        self._take_in(path)
        return True

    def read(self, key: bytes, buffers: Buffers) -> bool:
        """Fill buffers with a block's payload. False, and the block is forgotten, where it is gone or damaged."""
        with self._lock:
            segment = self._index.get(key)
            place = segment and segment.places.get(key)
        if segment is None or place is None:
            return False
        offset, digest = place
        try:
            with segment.path.open("rb", buffering=0) as file:
                good = _read_all(file, buffers, offset) and _digest(buffers) == digest
            os.utime(segment.path)
        except OSError:
            good = False
        if not good:
            self._forget(segment, key)
        return good

    def clear(self) -> None:
        """Forget this kind's blocks and remove their files."""
        with self._lock:
            own = [segment for segment in self._segments.values() if segment.path.parent == self._own]
        for segment in own:
            self._remove(segment)

    def _take_in(self, path: Path) -> None:
        """Know a segment that is there; remove one that is no segment."""
        try:
            status = path.stat()
            places = _places(path, status.st_size, self._payload_bytes) if path.parent == self._own else {}
        except OSError:
            return
        except ValueError as error:
            log.warning("%s is damaged (%s) and was removed", path, error)
            self.n_errors += 1
            path.unlink(missing_ok=True)
            return
        segment = _Segment(path, status.st_size, status.st_mtime, places)
        with self._lock:
            self._segments[path] = segment
            for key in places:
                self._index[key] = segment

    def _make_room(self, n_bytes: int) -> None:
        with self._lock:
            oldest = sorted(self._segments.values(), key=_used_s)
            total = sum(segment.n_bytes for segment in oldest)
        for segment in oldest:
            if total + n_bytes <= self.max_bytes:
                return
            total -= segment.n_bytes
            self._remove(segment)

    def _forget(self, segment: _Segment, key: bytes) -> None:
        with self._lock:
            self.n_errors += 1
            if self._index.get(key) is segment:
                del self._index[key]
            segment.places.pop(key, None)

    def _remove(self, segment: _Segment) -> None:
        with contextlib.suppress(OSError):
            segment.path.unlink(missing_ok=True)
        with self._lock:
            self._segments.pop(segment.path, None)
            for key in segment.places:
                if self._index.get(key) is segment:
                    del self._index[key]


def _header(blocks: Sequence[tuple[bytes, Buffers]], payload_bytes: int) -> tuple[bytes, int]:
    """(header, offset of the first payload)"""
    n_bytes = _FIXED.size + len(blocks) * (_KEY + _DIGEST) + _DIGEST
    body = _FIXED.pack(MAGIC, len(blocks), n_bytes, payload_bytes)
    for key, buffers in blocks:
        body += key + _digest(buffers)
    return body + hashlib.sha256(body).digest(), -(-n_bytes // ALIGN) * ALIGN


def _places(path: Path, file_bytes: int, payload_bytes: int) -> dict[bytes, tuple[int, bytes]]:
    """Where a segment's payloads are. Raises ValueError that says what is wrong with it, OSError."""
    with path.open("rb") as file:
        fixed = file.read(_FIXED.size)
        if len(fixed) < _FIXED.size:
            raise ValueError("shorter than a header")
        magic, n_blocks, n_bytes, size = _FIXED.unpack(fixed)
        if magic != MAGIC or not 0 < n_blocks <= _MOST_BLOCKS or n_bytes != _FIXED.size + n_blocks * (_KEY + _DIGEST) + _DIGEST:
            raise ValueError("no header")
        first = -(-n_bytes // ALIGN) * ALIGN
        if size != payload_bytes or file_bytes != first + n_blocks * size:
            raise ValueError("its size is not what its header says")
        body = fixed + file.read(n_bytes - _FIXED.size)
    if hashlib.sha256(body[:-_DIGEST]).digest() != body[-_DIGEST:]:
        raise ValueError("its header does not match its checksum")
    places = {}
    for i in range(n_blocks):
        at = _FIXED.size + i * (_KEY + _DIGEST)
        places[body[at : at + _KEY]] = first + i * size, body[at + _KEY : at + _KEY + _DIGEST]
    return places


def _digest(buffers: Buffers) -> bytes:
    digest = hashlib.sha256()
    for buffer in buffers:
        digest.update(buffer)
    return digest.digest()


def _write_all(file: FileIO, buffers: Buffers) -> None:
    for buffer in buffers:
        while buffer:
            buffer = buffer[file.write(buffer) :]


def _read_all(file: FileIO, buffers: Buffers, offset: int) -> bool:
    file.seek(offset)
    for buffer in buffers:
        while buffer:
            n = file.readinto(buffer)
            if n == 0:
                return False
            buffer = buffer[n:]
    return True


def _used_s(segment: _Segment) -> float:
    """Other processes may have read it since."""
    try:
        return segment.path.stat().st_mtime
    except OSError:
        return 0.0


def _is_alive(partial: Path) -> bool:
    """Whether the process that writes this segment still runs."""
    try:
        pid, began, *_ = partial.name.split("-")
        return f"{psutil.Process(int(pid)).create_time():.0f}" == began
    except (psutil.Error, ValueError):
        return False
