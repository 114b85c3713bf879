"""GGUFFile: a parser of GGUF files over a memory map; nothing in the file is trusted.

Format: docs/gguf.md of ggml (little-endian, versions 2 and 3, which differ in nothing that matters here):
  "GGUF", u32 version, u64 n_tensors, u64 n_keys
  n_keys times:    string key, u32 type, value (an array is u32 element type, u64 count, elements)
  n_tensors times: string name, u32 n_dims, u64 dims[n_dims] (fastest first), u32 type, u64 offset
  padding to general.alignment (32 by default), then the tensors' data, each at its offset from here
A string is u64 length and UTF-8 bytes.
"""

from __future__ import annotations

import errno
import mmap
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from kernels.ops import BLOCKS, DENSE

_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip
"""ggml_type of ggml.h; the names not in kernels.ops are only for error messages."""

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""gguf_type of scalars -> struct's letter."""
_STRING, _ARRAY = 8, 9
_MOST_NESTING = 4
_MOST_NESTED = 1 << 16
"""Arrays within arrays in a file; no model has any, and each takes ten times its bytes in the file."""
_MOST_KEYS, _MOST_TENSORS, _MOST_STRINGS = 1 << 16, 1 << 18, 1 << 22
"""More than any model has; a few bytes of the file each, they become objects of a hundred. Strings are of one array."""
_DOWNLOAD = "Download the file again."


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """shape has rows first and values of a row last; offset is from the start of the file."""

    name: str
    shape: tuple[int, ...]
    qtype: str
    offset: int
    n_bytes: int


class HeaderCut(ModelLoadError):
    """The file ends before its header does."""


class GGUFFile:
    """An opened file. `metadata` has Python values, `tensors` are by name, in the file's order.

    An array of numbers or truths is a memoryview on the file, for as a list it would take twenty times its bytes; one of
    strings or of arrays is a list.
    Raises ModelLoadError, naming file and field, for anything that is not a complete, consistent GGUF file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, GGUFTensor] = {}
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            self._fail("The file is empty.", _DOWNLOAD)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                self._fail(
                    "There is no room to map the file into memory.", "Close other programs, or raise the limit of ulimit -v."
                )
            self._fail(f"The file cannot be read ({error.strerror or error}).", "Check the path and its permissions.")
        self._size = len(self._map)
        self._at = 0
        self._n_nested = 0
        self._parse()
        self.header_bytes = self._at
        """Where the header ends, before padding."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")  # weights are only ever read
            self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        """The whole file, uint8."""

    def data(self, name: str) -> Tensor:
        """A tensor's data as a view on the map: [*shape] of a dense type, else uint8 [*shape[:-1], bytes per row]."""
        tensor = self.tensors[name]
        raw = self.bytes[tensor.offset : tensor.offset + tensor.n_bytes]
        if tensor.qtype in DENSE:
            return raw.view(DENSE[tensor.qtype]).view(tensor.shape)
        n_values, n_bytes = BLOCKS[tensor.qtype]
        return raw.view(*tensor.shape[:-1], tensor.shape[-1] // n_values * n_bytes)

    def _parse(self) -> None:
        if self._take(4, "magic") != b"GGUF":
            self._fail("This is not a GGUF file.", "Give a .gguf file, or a folder with config.json and safetensors.")
        version = self._scalar("I", "version")
        if version not in (2, 3):
            big_endian = version in (2 << 24, 3 << 24)
            what = "The file is big-endian." if big_endian else f"GGUF version {version} is not supported."
            self._fail(what, "Take a newer conversion of the model.")
        n_tensors, n_keys = self._scalar("Q", "tensor count"), self._scalar("Q", "metadata count")
        self._bounded(n_keys, 8 + 4 + 1, "metadata count", _MOST_KEYS)
        self._bounded(n_tensors, 8 + 4 + 8 + 4 + 8, "tensor count", _MOST_TENSORS)
        for i in range(n_keys):
            key = self._string(f"metadata key {i}")
            if key in self.metadata:
                self._fail(f"The metadata key {key!r} is there twice.")
            self.metadata[key] = self._value(self._scalar("I", key), key)
        described = [self._tensor_info(i) for i in range(n_tensors)]
        self._place(described)

    def _value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind], key)
        if kind == _STRING:
            return self._string(key)
        if kind != _ARRAY:
            self._fail(f"The metadata key {key!r} has the unknown type {kind}.")
        if depth == _MOST_NESTING:
            self._fail(f"The metadata key {key!r} nests arrays more than {_MOST_NESTING} deep.")
        kind, count = self._scalar("I", key), self._scalar("Q", key)
        if kind in _SCALARS:
            letter = _SCALARS[kind]
            self._bounded(count, struct.calcsize(letter), key)
            start, self._at = self._at, self._at + count * struct.calcsize(letter)
            if letter == "?" and self._map[start : self._at].translate(None, b"\0\1"):
                self._fail(f"The metadata key {key!r} has a truth value that is neither 0 nor 1.")
            return memoryview(self._map)[start : self._at].cast(letter)
        self._bounded(count, 8 if kind == _STRING else 4 + 8, key, _MOST_STRINGS)
        if kind == _STRING:
            return self._strings(count, key)
        self._n_nested += count
        if self._n_nested > _MOST_NESTED:
            self._fail(f"The metadata key {key!r} has more than {_MOST_NESTED} arrays within an array.")
        return [self._value(kind, key, depth + 1) for _ in range(count)]

    def _strings(self, count: int, key: str) -> list[str]:
        """A vocabulary has hundreds of thousands of strings: this loop is the time that opening a file takes."""
        data, size, at = self._map, self._size, self._at
        length_at, strings = struct.Struct("<Q").unpack_from, []
        for _ in range(count):
            start = at + 8
            if start > size:
                self._truncated(key)
            at = start + length_at(data, start - 8)[0]
            if at > size:
                self._truncated(key)
            strings.append(data[start:at])
        self._at = at
        try:
            return [string.decode() for string in strings]
        except UnicodeDecodeError:
            self._fail(f"The metadata key {key!r} has text that is not UTF-8.")

    def _tensor_info(self, i: int) -> tuple[str, tuple[int, ...], str, int]:
        name = self._string(f"name of tensor {i}")
        n_dims = self._scalar("I", name)
        if not 1 <= n_dims <= 4:
            self._fail(f"The tensor {name!r} has {n_dims} dimensions; 1 to 4 are possible.")
        dims = tuple(self._scalar("Q", name) for _ in range(n_dims))
        type_id, offset = self._scalar("I", name), self._scalar("Q", name)
        qtype = _TYPES.get(type_id, f"number {type_id}")
        if qtype not in DENSE and qtype not in BLOCKS:
            supported = ", ".join((*DENSE, *BLOCKS))
            self._fail(
                f"The tensor {name!r} is of type {qtype}, which is not supported.", f"Take a file of these types: {supported}."
            )
        return name, dims[::-1], qtype, offset

    def _place(self, described: list[tuple[str, tuple[int, ...], str, int]]) -> None:
        """Check every tensor's size and place, and that no two overlap."""
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            self._fail(f"general.alignment is {alignment!r}, which is not a power of two from 8 to {1 << 20}.")
        start = -(-self._at // alignment) * alignment
        for name, shape, qtype, offset in described:
            if name in self.tensors:
                self._fail(f"The tensor {name!r} is there twice.")
            n_values, n_bytes = BLOCKS[qtype] if qtype in BLOCKS else (1, DENSE[qtype].itemsize)
            if 0 in shape or shape[-1] % n_values:
                self._fail(f"The tensor {name!r} of type {qtype} has the impossible shape {list(shape)}.")
            size = n_bytes
            for dim in (*shape[:-1], shape[-1] // n_values):
                size *= dim
            if offset % alignment:
                self._fail(f"The tensor {name!r} starts at {offset}, which is no multiple of {alignment}.")
            if start + offset + size > self._size:
                self._fail(
                    f"The tensor {name!r} ends at byte {start + offset + size}, but the file has {self._size} bytes.",
                    "The file is incomplete; download it again.",
                )
            self.tensors[name] = GGUFTensor(name, shape, qtype, start + offset, size)
        end, before = 0, ""
        for tensor in sorted(self.tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                self._fail(f"The tensors {before!r} and {tensor.name!r} overlap.")
            end, before = tensor.offset + tensor.n_bytes, tensor.name

    def _scalar(self, letter: str, field: str) -> Any:
        raw = self._take(struct.calcsize(letter), field)
        if letter == "?" and raw not in (b"\0", b"\1"):
            self._fail(f"The metadata key {field!r} is a truth value of {raw[0]}, neither 0 nor 1.")
        return struct.unpack(f"<{letter}", raw)[0]

    def _string(self, field: str) -> str:
        try:
            return self._take(self._scalar("Q", field), field).decode()
        except UnicodeDecodeError:
            self._fail(f"The {field!r} is not UTF-8 text.")

    def _take(self, n_bytes: int, field: str) -> bytes:
        if n_bytes > self._size - self._at:
            self._truncated(field)
        self._at += n_bytes
        return self._map[self._at - n_bytes : self._at]

    def _bounded(self, count: int, least_bytes: int, field: str, most: int | None = None) -> None:
        """Refuse a count that the rest of the file cannot hold, or no model has, before anything is made in that number."""
        if most is not None and count > most:
            self._fail(f"The {field!r} counts {count} items, more than {most}.")
        if count > (self._size - self._at) // least_bytes:
            what = f"The {field!r} counts {count} items, more than the rest of the file can hold."
            raise HeaderCut(f"{self.path}: {what}", "The file is damaged; download it again.")

    def _truncated(self, field: str) -> NoReturn:
        raise HeaderCut(f"{self.path}: The file ends within {field!r}.", "The file is incomplete; download it again.")

    def _fail(self, what: str, hint: str = "The file is damaged; download it again.") -> NoReturn:
        raise ModelLoadError(f"{self.path}: {what}", hint)
