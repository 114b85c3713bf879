"""DiskStore: blocks of KV in files that outlive the process.

Blocks are written in segments (see segment.py), each complete when it has its name. Nothing that is read is trusted: a segment
whose header does not check is removed, a payload that does not is a miss. Segments of all models share one folder, with a
subfolder for what may be read together, and one limit: the least recently used segments are removed.

Several processes may use one folder. Each takes the room of a segment before it looks at what all of them have, so that they keep
the limit together (but for a segment that gets its name while somebody looks, until the next look). What others of its kind wrote
it knows from its next write on: a lookup belongs to the engine's thread, which must not wait for files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil

from engine.kv.tiers import segment
from engine.kv.tiers.connector import Buffers
from engine.kv.tiers.segment import Place

log = logging.getLogger(__name__)

SUFFIX, PARTIAL = ".kv", ".partial"
_TOUCH_S = 1.0
"""A segment that is read is marked as used no more often than this."""


@dataclass(slots=True)
class _Known:
    """A segment of this kind."""

    path: Path
    places: dict[bytes, Place]
    touched_s: float = -_TOUCH_S


class DiskStore:
    """Blocks by key, each of a size of its own. Every method may be called from any thread; reads and writes block.

    folder: all models'; `kind` names what may be read together and becomes a subfolder.
    """

    def __init__(self, folder: Path, kind: str, max_bytes: int) -> None:
        """Reads the headers of what is there. Raises OSError where the folder cannot be made."""
        self.max_bytes = max_bytes
        self.n_damaged = 0
        """Segments and payloads that turned out to be damaged."""
        self.n_bytes = 0
        """Of all models' segments, as last seen."""
        self.read_bytes = self.written_bytes = 0
        """Of payloads that came back, and of segments."""
        self._folder, self._own = folder, folder / kind
        self._files = threading.Lock()
        """Held while files come and go."""
        self._lock = threading.Lock()
        """Held while what is known of them changes."""
        self._segments: dict[Path, _Known] = {}
        self._index: dict[bytes, _Known] = {}
        self._n_written = 0
        # With the time: in a container the next process may have the same number.
        self._writer = f"{os.getpid()}-{psutil.Process().create_time():.0f}-{os.urandom(4).hex()}"
        for path in (folder, self._own):  # what was said in a conversation can be guessed from its KV
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._clean_up()
        self._make_room()

    @property
    def n_blocks(self) -> int:
        return len(self._index)

    def __contains__(self, key: bytes) -> bool:
        return key in self._index

    def write(self, blocks: Sequence[tuple[bytes, Buffers]]) -> bool:
        """Store blocks as one segment; what is stored already is left out. False where the disk did not take it."""
        with self._files:
            blocks = [(key, buffers) for key, buffers in blocks if key not in self._index]
            if not blocks:
                return True
            header = segment.header(blocks)
            n_bytes = len(header) + sum(segment.size(buffers) for _, buffers in blocks)
            if n_bytes > self.max_bytes:
                _warn_of_small_limit(self.max_bytes, n_bytes)
                return False
            self._n_written += 1
            path = self._own / f"{self._writer}-{self._n_written}{SUFFIX}"
            partial = path.with_suffix(PARTIAL)
            try:
                with open(partial, "xb", buffering=0, opener=_for_me_alone) as file:
                    file.truncate(n_bytes)  # others count it from now on
                    if not self._make_room():
                        raise OSError("others are writing all that the limit allows")
                    segment.write(file, [memoryview(header)])
                    for _, buffers in blocks:
                        segment.write(file, buffers)
                partial.rename(path)
            except OSError as error:
                log.warning("KV blocks could not be written to %s: %s", self._own, error)
                _remove(partial)
                return False
            self.written_bytes += n_bytes
            self._take_in(path)
            return True

    def read(self, key: bytes, buffers: Buffers) -> bool:
        """Fill buffers with a block's payload. False where it is gone, damaged, or of another size than the buffers."""
        with self._lock:
            known = self._index.get(key)
            place = known and known.places.get(key)
        if known is None or place is None or place.n_bytes != segment.size(buffers):
            return False
        try:
            with known.path.open("rb", buffering=0) as file:
                good = place.read(file, buffers)
        except FileNotFoundError:  # another process made room
            self._forget(known.path)
            return False
        except OSError:
            good = False
        if good and (now := time.monotonic()) - known.touched_s > _TOUCH_S:
            known.touched_s = now
            with contextlib.suppress(OSError):  # it was read all the same
                os.utime(known.path)
        with self._lock:
            if good:
                self.read_bytes += place.n_bytes
            else:
                self.n_damaged += 1
                known.places.pop(key, None)
                if self._index.get(key) is known:
                    del self._index[key]
        return good

    def clear(self) -> None:
        """Forget this kind's blocks and remove their files, those of other processes too."""
        with self._files:
            for file in self._look():
                if file.complete and file.path.parent == self._own and _remove(file.path):
                    self._forget(file.path)
                    self.n_bytes -= file.n_bytes

    def _clean_up(self) -> None:
        """Remove what nobody reads any more, and what dead processes left half written."""
        n_old = sum(segment.is_outdated(path) and _remove(path) for path in self._folder.glob(f"*/*{SUFFIX}"))
        if n_old:
            log.info("%d files that an earlier version kept KV in were removed from %s", n_old, self._folder)
        for path in self._folder.glob(f"*/*{PARTIAL}"):
            if not _is_alive(path):
                _remove(path)

    def _make_room(self) -> bool:
        """Remove the least recently used segments until the limit holds; False where it does not even so."""
        files = self._look()
        for file in files:
            if self.n_bytes <= self.max_bytes:
                break
            if file.complete and _remove(file.path):
                self.n_bytes -= file.n_bytes
                self._forget(file.path)
        return self.n_bytes <= self.max_bytes

    def _look(self) -> list[_File]:
        """What all processes have here, the least recently used first; this kind's segments are known then, and no others."""
        files = sorted(_files(self._folder), key=lambda file: file.used_s)
        self.n_bytes = sum(file.n_bytes for file in files)
        there = {file.path for file in files if file.complete and file.path.parent == self._own}
        for path in self._segments.keys() - there:
            self._forget(path)
        for path in sorted(there - self._segments.keys()):
            self._take_in(path)
        return files

    def _take_in(self, path: Path) -> None:
        """Know a segment that is there; remove one that is none."""
        try:
            known = _Known(path, segment.places(path))
        except OSError:
            return
        except ValueError as error:
            log.warning("%s is damaged (%s) and was removed", path, error)
            with self._lock:
                self.n_damaged += 1
            _remove(path)
            return
        with self._lock:
            self._segments[path] = known
            self._index |= dict.fromkeys(known.places, known)

    def _forget(self, path: Path) -> None:
        with self._lock:
            known = self._segments.pop(path, None)
            for key in known.places if known else ():
                if self._index.get(key) is known:
                    del self._index[key]


class _File(NamedTuple):
    path: Path
    """Of a segment, half written ones by the name that they will have."""
    n_bytes: int
    used_s: float
    complete: bool


def _files(folder: Path) -> list[_File]:
    """The segments of all kinds. One that gets its name meanwhile may be missing, but none is there twice."""
    found: dict[Path, _File] = {}
    for kind in filter(os.DirEntry.is_dir, os.scandir(folder)):
        for entry in os.scandir(kind):
            path = Path(entry.path)
            if path.suffix not in (SUFFIX, PARTIAL):
                continue
            named, complete = path.with_suffix(SUFFIX), path.suffix == SUFFIX
            with contextlib.suppress(FileNotFoundError):
                try:
                    status = path.stat()
                except FileNotFoundError:  # it has its name now
                    status, complete = named.stat(), True
                found[named] = _File(named, status.st_size, status.st_mtime, complete)
    return list(found.values())


def _for_me_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@cache
def _warn_of_small_limit(max_bytes: int, n_bytes: int) -> None:
    """Once for each limit and size."""
    log.warning("KV blocks of %d bytes are not kept: the disk may hold %d. Raise --kv-disk-space.", n_bytes, max_bytes)


def _remove(path: Path) -> bool:
    """Whether it is gone."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _is_alive(partial: Path) -> bool:
    """Whether the process that writes this segment still runs."""
    try:
        pid, began, *_ = partial.name.split("-")
        return f"{psutil.Process(int(pid)).create_time():.0f}" == began
    except (psutil.Error, ValueError):
        return False
