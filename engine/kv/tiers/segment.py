"""Segments: files of KV blocks. The header says where each block's payload is, and how to tell whether it is whole.

The header, little-endian: magic (8 bytes, of which the last is the version), number of blocks (u32), size of the header (u32),
then for each block its key (32 bytes), the size (u64) and the CRC-32 (u32) of its payload, then the SHA-256 of all that. Payloads
begin at the next multiple of 4096 and follow each other without gaps.

A CRC finds what disks and crashes do to a file, in a third of the time that a digest takes; against somebody who may write into
the folder neither helps.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from engine.kv.tiers.connector import Buffers

FORMAT, VERSION = b"PAGEKV\x00", 2
MAGIC = FORMAT + bytes([VERSION])
ALIGN = 4096
_FIXED = struct.Struct("<8sII")
_ENTRY = struct.Struct("<32sQI")
_DIGEST = 32
_MOST_BLOCKS = 1 << 16


class Place(NamedTuple):
    """Where a payload is in its file."""

    offset: int
    n_bytes: int
    crc: int

    def read(self, file: FileIO, buffers: Buffers) -> bool:
        """Fill the buffers, which together have its size; False where it is not whole."""
        file.seek(self.offset)
        for buffer in buffers:
            while buffer:
                n = file.readinto(buffer)
                if n == 0:
                    return False
                buffer = buffer[n:]
        return _crc(buffers) == self.crc


def header(blocks: Sequence[tuple[bytes, Buffers]]) -> bytes:
    """What comes before the payloads of these blocks, given in their order."""
    n_bytes = _FIXED.size + len(blocks) * _ENTRY.size + _DIGEST
    parts = [_FIXED.pack(MAGIC, len(blocks), n_bytes)]
    parts += [_ENTRY.pack(key, size(buffers), _crc(buffers)) for key, buffers in blocks]
    body = b"".join(parts)
    return (body + hashlib.sha256(body).digest()).ljust(_aligned(n_bytes), b"\0")


def write(file: FileIO, buffers: Buffers) -> None:
    for buffer in buffers:
        while buffer:
            buffer = buffer[file.write(buffer) :]


def places(path: Path) -> dict[bytes, Place]:
    """Where the payloads are, by key; none in a segment of another version.

    Raises ValueError that says what is wrong with a file that is none, or is not whole; OSError.
    """
    with path.open("rb") as file:
        fixed = file.read(_FIXED.size)
        if len(fixed) < _FIXED.size:
            raise ValueError("shorter than a header")
        magic, n_blocks, n_bytes = _FIXED.unpack(fixed)
        if magic != MAGIC and magic.startswith(FORMAT):
            return {}
        if magic != MAGIC or not 0 < n_blocks <= _MOST_BLOCKS or n_bytes != _FIXED.size + n_blocks * _ENTRY.size + _DIGEST:
            raise ValueError("no header")
        body = fixed + file.read(n_bytes - _FIXED.size)
        file_bytes = os.fstat(file.fileno()).st_size
    if hashlib.sha256(body[:-_DIGEST]).digest() != body[-_DIGEST:]:
        raise ValueError("its header does not match its checksum")
    found, offset = {}, _aligned(n_bytes)
    for key, n_payload, crc in _ENTRY.iter_unpack(body[_FIXED.size : -_DIGEST]):
        found[key] = Place(offset, n_payload, crc)
        offset += n_payload
    if offset != file_bytes:
        raise ValueError("its size is not what its header says")
    return found


def is_outdated(path: Path) -> bool:
    """Whether an earlier version wrote it, so that nobody reads it any more."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError:
        return False
    return len(magic) == len(MAGIC) and magic.startswith(FORMAT) and magic < MAGIC


def size(buffers: Buffers) -> int:
    return sum(buffer.nbytes for buffer in buffers)


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGN) * ALIGN


def _crc(buffers: Buffers) -> int:
    crc = 0
    for buffer in buffers:
        crc = zlib.crc32(buffer, crc)
    return crc
