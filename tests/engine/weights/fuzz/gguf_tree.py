"""A GGUF file as a tree that can be changed, and back to bytes, with the place of every number that a reader must not believe.

Independent of the parser under test, which this is for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""gguf_type of scalars -> bytes."""


@dataclass
class Array:
    kind: int
    items: list[Value]


Value = bytes | Array
"""A scalar's bytes, a string's bytes, or an array of either or of arrays."""


@dataclass
class Entry:
    key: bytes
    kind: int
    value: Value


@dataclass
class Info:
    """Of one tensor; dims as in the file, values of a row first."""

    name: bytes
    dims: list[int]
    kind: int
    offset: int


@dataclass
class Tree:
    entries: list[Entry] = field(default_factory=list)
    infos: list[Info] = field(default_factory=list)
    data: bytes = b""
    version: int = 3
    alignment: int = 32

    def entry(self, key: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.key == key.encode()), None)


@dataclass(frozen=True)
class Place:
    """A number in the file: where, how many bytes, and what it says."""

    at: int
    n_bytes: int
    what: str


class _Writer:
    def __init__(self) -> None:
        self.raw = bytearray()
        self.places: list[Place] = []

    def number(self, n_bytes: int, value: int, what: str) -> None:
        self.places.append(Place(len(self.raw), n_bytes, what))
        self.raw += (value % (1 << 8 * n_bytes)).to_bytes(n_bytes, "little")

    def string(self, text: bytes, what: str) -> None:
        self.number(8, len(text), f"length of {what}")
        self.raw += text

    def value(self, kind: int, value: Value, what: str) -> None:
        if isinstance(value, Array):
            self.number(4, value.kind, f"element type of {what}")
            self.number(8, len(value.items), f"count of {what}")
            for item in value.items:
                self.value(value.kind, item, what)
        elif kind == STRING:
            self.string(value, what)
        else:
            self.places.append(Place(len(self.raw), len(value), what))
            self.raw += value


def write(tree: Tree) -> tuple[bytes, list[Place]]:
    """The file, and its numbers in their order; the tensors' offsets are taken as they are."""
    to = _Writer()
    to.raw += b"GGUF"
    to.number(4, tree.version, "version")
    to.number(8, len(tree.infos), "tensor count")
    to.number(8, len(tree.entries), "metadata count")
    for entry in tree.entries:
        name = entry.key.decode(errors="replace")
        to.string(entry.key, "a key")
        to.number(4, entry.kind, f"type of {name}")
        to.value(entry.kind, entry.value, name)
    for info in tree.infos:
        name = info.name.decode(errors="replace")
        to.string(info.name, "a tensor's name")
        to.number(4, len(info.dims), f"rank of {name}")
        for dim in info.dims:
            to.number(8, dim, f"dim of {name}")
        to.number(4, info.kind, f"type of {name}")
        to.number(8, info.offset, f"offset of {name}")
    return bytes(to.raw) + bytes(-len(to.raw) % tree.alignment) + tree.data, to.places


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def take(self, n_bytes: int) -> bytes:
        self.at += n_bytes
        return self.raw[self.at - n_bytes : self.at]

    def number(self, n_bytes: int) -> int:
        return int.from_bytes(self.take(n_bytes), "little")

    def value(self, kind: int) -> Value:
        if kind == STRING:
            return self.take(self.number(8))
        if kind == ARRAY:
            kind, count = self.number(4), self.number(8)
            return Array(kind, [self.value(kind) for _ in range(count)])
        return self.take(SIZES[kind])


def read(raw: bytes) -> Tree:
    """Of a sound file; write(read(raw)) gives it back byte for byte."""
    reader = _Reader(raw)
    assert reader.take(4) == b"GGUF"
    tree = Tree(version=reader.number(4))
    n_infos, n_entries = reader.number(8), reader.number(8)
    for _ in range(n_entries):
        key, kind = reader.take(reader.number(8)), reader.number(4)
        tree.entries.append(Entry(key, kind, reader.value(kind)))
    for _ in range(n_infos):
        name, rank = reader.take(reader.number(8)), reader.number(4)
        dims = [reader.number(8) for _ in range(rank)]
        tree.infos.append(Info(name, dims, reader.number(4), reader.number(8)))
    if (stated := tree.entry("general.alignment")) is not None:
        tree.alignment = struct.unpack("<I", stated.value)[0]
    tree.data = raw[-(-reader.at // tree.alignment) * tree.alignment :]
    return tree
