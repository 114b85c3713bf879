"""Weights that were quantised on load, kept on disk for the next one: a safetensors file for each checkpoint and scheme.

The file is written beside its place while a model is filled, and takes it once every weight is in it. Each tensor's CRC-32 is in
the metadata: one that does not fit is said loudly, and made again. Files that were used longest ago make room for others.

The folder is a person's, who may keep other things there: files of ours are in a subfolder, and only what is named as they are is
counted or removed. Several processes may use it. Each takes the room of a file before it looks at what all of them have.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import struct
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor

from kernels.ops import SCALED, ZEROS, Weight

log = logging.getLogger(__name__)

FOLDER = "quantized-on-load"
SUFFIX, PARTIAL = ".safetensors", ".partial"
DISK_SHARE = 4
"""As small a part of what is free on the disk, or taken by such files, is for them, unless more is asked for."""
ABANDONED_S = 3600.0
"""A partial file to which nothing was written for so long is nobody's. Process numbers do not tell: containers have their own."""
_NAMED = re.compile(rf"[0-9a-f]{{40}}-[a-z0-9]+-\d+{re.escape(SUFFIX)}")
_HALF_WRITTEN = re.compile(rf"{_NAMED.pattern}\.\d+-\d+-[0-9a-f]{{8}}{re.escape(PARTIAL)}")
_NAMES = {torch.uint8: "U8", torch.int8: "I8", torch.float8_e4m3fn: "F8_E4M3", torch.float32: "F32", torch.int16: "I16"}
_ALIGN = 8
"""Of where the data begins, as in any file of this format."""
_MOST_HEADER = 100 << 20
"""As the safetensors package has it."""


class Wanted(NamedTuple):
    """A weight that is to be kept."""

    qtype: str
    group: int
    shape: tuple[int, int]


class _Part(NamedTuple):
    """A tensor of it in the file."""

    dtype: torch.dtype
    shape: tuple[int, int]
    n_bytes: int
    offset: int
    """From the end of the header."""


class _File(NamedTuple):
    path: Path
    n_bytes: int
    used_s: float
    is_whole: bool


class Store:
    """Such files below `folder`, which together take at most `space` bytes; None: a share of what is free there."""

    def __init__(self, folder: Path, space: int | None = None) -> None:
        """Touches nothing: that is for a model that really loads."""
        self.folder = folder / FOLDER
        self._space = space

    def open(self, key: str, wanted: Mapping[str, Wanted]) -> Stored | None:
        """What is kept under the key, or the place where it will be; None, as the log says, where it would not fit.

        key: 40 hexadecimal digits, a type and a number, with hyphens. Makes the folder, which nobody else may look into, and
        keeps to the limit. Raises OSError.
        """
        assert _NAMED.fullmatch(f"{key}{SUFFIX}"), key
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path, parts = self.folder / f"{key}{SUFFIX}", _described(wanted)
        size = sum(part.n_bytes for part in parts.values())
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)  # used now
        for file in self._look():
            if not file.is_whole and time.time() - file.used_s > ABANDONED_S:
                file.path.unlink(missing_ok=True)
        self.make_room()
        if size > (space := self.space()):
            log.warning("Each load quantises anew: the weights take %d bytes, and %d may be kept on disk.", size, space)
            return None
        return Stored(path, wanted, parts, self.make_room)

    def files(self) -> list[Path]:
        """Whole ones, those used longest ago first."""
        return [file.path for file in self._look() if file.is_whole]

    def space(self) -> int:
        """Bytes that all files may take."""
        if self._space is not None:
            return self._space
        return (shutil.disk_usage(self.folder).free + sum(file.n_bytes for file in self._look() if file.is_whole)) // DISK_SHARE

    def make_room(self) -> bool:
        """Remove files used longest ago until all, half written ones too, keep to the limit; False where they do not even so."""
        space, files = self.space(), self._look()
        taken = sum(file.n_bytes for file in files)
        for file in files:
            if taken <= space:
                break
            if file.is_whole:
                log.info("Removing %s: quantised weights may take %d bytes on disk", file.path, space)
                file.path.unlink(missing_ok=True)
                taken -= file.n_bytes
        return taken <= space

    def _look(self) -> list[_File]:
        """What all processes have here, that used longest ago first."""
        files = []
        for path in self.folder.iterdir():
            is_whole = _NAMED.fullmatch(path.name) is not None
            if is_whole or _HALF_WRITTEN.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    files.append(_File(path, status.st_size, status.st_mtime, is_whole))
        return sorted(files, key=lambda file: file.used_s)


class Stored:
    """One such file: read, if it was there, else written."""

    def __init__(
        self, path: Path, wanted: Mapping[str, Wanted], parts: Mapping[str, _Part], make_room: Callable[[], bool]
    ) -> None:
        """make_room: called once all of its room is taken; whether the limit is kept."""
        self.path = path
        self._make_room = make_room
        self._wanted = wanted
        self._parts = parts
        self._sums: dict[str, str] | None = None
        """CRC-32 of each tensor of a file that is there."""
        self._start = 0
        self._writing: _Writing | None = None
        self._may_write = not path.is_file() or not self._read_header()

    def has(self, name: str) -> bool:
        """Whether it is on disk."""
        return self._sums is not None and name in self._wanted

    def weight(self, name: str) -> Weight | None:
        """None where it is not kept; the log says so if it should be."""
        if self._sums is None:
            return None
        qtype, _, shape = self._wanted[name]
        try:
            with self.path.open("rb") as file:
                return Weight(qtype, shape, *(self._tensor(file, f"{name}.{part}") for part in _names(qtype)))
        except (OSError, ValueError) as error:
            self._spoiled(f"{name}: {error}")
            return None

    def keep(self, name: str, weight: Weight) -> None:
        """Write it, and once all are there the file takes its place. Where the disk does not take it, the log says so."""
        if not self._may_write:
            return
        try:
            if self._writing is None:
                self._writing = _Writing(self.path, self._parts)
                if not self._make_room():
                    raise OSError("others are writing all that --weights-disk-space allows")
            for part in _names(weight.qtype):
                self._writing.write(f"{name}.{part}", getattr(weight, part))
            if not self._writing.missing:
                self._writing.finish()
                self._may_write = False
        except OSError as error:
            log.warning("Quantised weights are not kept, and the next load makes them anew: %s: %s", self.path, error)
            self._may_write, self._writing = False, None

    def _tensor(self, file: Any, name: str) -> Tensor:
        part = self._parts[name]
        tensor = torch.empty(part.shape, dtype=part.dtype)
        buffer = memoryview(tensor.flatten().view(torch.uint8).numpy())
        file.seek(self._start + part.offset)
        if file.readinto(buffer) != part.n_bytes:
            raise ValueError("the file ends too early")
        if f"{zlib.crc32(buffer):08x}" != self._sums[name]:
            raise ValueError("its bytes are not those that were written")
        return tensor

    def _read_header(self) -> bool:
        try:
            with self.path.open("rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(min(size, _MOST_HEADER)))
            sums = header.pop("__metadata__")
            if header != _entries(self._parts) or sums.keys() != header.keys():
                raise ValueError("it holds other tensors")
        except (OSError, ValueError, struct.error, AttributeError, KeyError, TypeError, RecursionError) as error:
            self._spoiled(f"its header: {error}")
            return False
        self._sums, self._start = sums, 8 + size
        return True

    def _spoiled(self, why: str) -> None:
        log.warning("Weights are quantised again: what was kept in %s is damaged (%s)", self.path, why)
        self._sums = None
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


class _Writing:
    """A file that is being written, its tensors in any order, beside its place."""

    def __init__(self, path: Path, parts: Mapping[str, _Part]) -> None:
        """Raises OSError."""
        self.missing = set(parts)
        self._path = path
        self._parts = parts
        self._sums = dict.fromkeys(parts, "0" * 8)
        writer = f"{os.getpid()}-{psutil.Process().create_time():.0f}-{os.urandom(4).hex()}"
        self._partial = path.with_name(f"{path.name}.{writer}{PARTIAL}")
        self._file = self._partial.open("xb")
        weakref.finalize(self, _abandon, self._file, self._partial)
        self._start = len(self._head())
        self._file.truncate(self._start + sum(part.n_bytes for part in parts.values()))  # others count it from now on

    def write(self, name: str, tensor: Tensor) -> None:
        buffer = memoryview(tensor.contiguous().flatten().view(torch.uint8).numpy())
        assert buffer.nbytes == self._parts[name].n_bytes
        self._file.seek(self._start + self._parts[name].offset)
        self._file.write(buffer)
        self._sums[name] = f"{zlib.crc32(buffer):08x}"
        self.missing.discard(name)

    def finish(self) -> None:
        self._file.seek(0)
        self._file.write(self._head())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._path)

    def _head(self) -> bytes:
        """Of the same size whatever the sums."""
        text = json.dumps({"__metadata__": self._sums} | _entries(self._parts), separators=(",", ":")).encode()
        text = text.ljust(-(-len(text) // _ALIGN) * _ALIGN)
        return struct.pack("<Q", len(text)) + text


def _abandon(file: Any, partial: Path) -> None:
    """Nothing is left of a file that did not become whole."""
    with contextlib.suppress(OSError):
        file.close()
    with contextlib.suppress(OSError):
        partial.unlink(missing_ok=True)


def _names(qtype: str) -> Iterable[str]:
    """Fields of a Weight of this type."""
    return ("data", "scales", "zeros") if qtype == "INT4" else ("data", "scales")


def _described(wanted: Mapping[str, Wanted]) -> dict[str, _Part]:
    parts, offset = {}, 0
    for name, (qtype, group, (n_out, n_in)) in wanted.items():
        dtype, n_values = SCALED[qtype]
        groups = (n_out, n_in // group)
        for part in _names(qtype):
            kind = {"data": dtype, "scales": torch.float32}.get(part) or ZEROS[qtype]
            shape = (n_out, n_in // n_values) if part == "data" else groups
            n_bytes = shape[0] * shape[1] * kind.itemsize
            parts[f"{name}.{part}"] = _Part(kind, shape, n_bytes, offset)
            offset += n_bytes
    return parts


def _entries(parts: Mapping[str, _Part]) -> dict[str, Any]:
    """As a safetensors header has them."""
    return {
        name: {"dtype": _NAMES[part.dtype], "shape": [*part.shape], "data_offsets": [part.offset, part.offset + part.n_bytes]}
        for name, part in parts.items()
    }
