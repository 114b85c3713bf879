"""What the formats share: stored tensors, the matrices that they make up, and unpacking of integers.

A format is a function find(config, tensors) -> Found: by the quantization_config of a checkpoint and the tensors that are
there, it says which matrices these make up. Tensors that it does not name (norms, embeddings, biases, modules that were left
alone) are served as they are. Nothing in the file is trusted: what does not agree is a ModelLoadError that names it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.weights.fields import Fields
from kernels.ops import GROUP_UNIT, ROW_UNIT, SCALED, ZEROS, Weight

_TILE_VALUES = 1 << 22
"""Values unpacked at once, in int64: 32 MiB."""
ZERO_POINTS = {"INT4": 8, "INT8": 0}
"""What zero points are of a Weight that has none."""
DAMAGED = "The checkpoint is damaged, or of a kind that Pagewell does not know; download it again, or take another one."
FLOATS = ("F32", "F16", "BF16")
"""safetensors' names of the types that scales are stored in."""


class Tensors(Protocol):
    """Tensors as they lie in a checkpoint's files, by the names under which layers ask for them."""

    path: Path

    def names(self) -> Collection[str]: ...

    def stored_name(self, name: str) -> str:
        """What the file calls it."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> str:
        """As safetensors calls it: "F16", "I32", "F8_E4M3" ..."""
        ...

    def tensor(self, name: str) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix that one or several stored tensors make up."""

    qtype: str
    shape: tuple[int, int]
    group: int
    parts: tuple[str, ...]
    """Names of the stored tensors, first the one that holds the values."""
    load: Callable[[], Weight]
    zeros: bool = False
    """It may have zero points."""
    order: bool = False
    """Its columns may be in another order."""
    n_copies: int = 0
    """Bytes for each value that there are at once on the way from the file's layout, at most."""

    @property
    def unpacking_bytes(self) -> int:
        return self.n_copies * self.shape[0] * self.shape[1]

    @property
    def n_bytes(self) -> int:
        """Of what `load` gives, at most."""
        return weight_bytes(self.qtype, self.shape, self.group, zeros=self.zeros, order=self.order)


@dataclass(frozen=True, slots=True)
class Found:
    matrices: dict[str, Matrix] = field(default_factory=dict)
    """Name as layers ask for it -> what it is made of."""
    unused: set[str] = field(default_factory=set)
    """Stored tensors that nothing here needs, such as scales of activations."""


def weight_bytes(qtype: str, shape: tuple[int, int], group: int, *, zeros: bool = False, order: bool = False) -> int:
    """Of a Weight of a type in SCALED."""
    dtype, n_values = SCALED[qtype]
    n_groups = shape[0] * (shape[1] // group)
    apart = 4 + (ZEROS[qtype].itemsize if zeros else 0)
    return shape[0] * shape[1] // n_values * dtype.itemsize + n_groups * apart + (4 * shape[1] if order else 0)


def bad(tensors: Tensors, name: str, what: str, hint: str = DAMAGED) -> ModelLoadError:
    """An error about one tensor, to be raised by the caller."""
    return ModelLoadError(f"{tensors.path}: the tensor {tensors.stored_name(name)} {what}.", hint)


def modules(tensors: Tensors, part: str) -> list[str]:
    """Names of the modules that have a tensor of this name, "model.layers.0.mlp.up_proj" for example."""
    return [name.removesuffix(f".{part}") for name in tensors.names() if name.endswith(f".{part}")]


def own_settings(config: Fields, module: str, overrides: Any) -> Fields:
    """What config says of a module (the name that the file has): overrides are "+:pattern" of modules -> their own fields."""
    if not isinstance(overrides, dict):
        raise config.bad("dynamic", "is no object")
    for pattern, values in overrides.items():
        try:
            if not pattern.startswith("-:") and re.match(pattern.removeprefix("+:"), module):
                return Fields({**config.values, **values}, f"{config.source}: dynamic: {pattern}")
        except (re.error, TypeError):
            raise config.bad("dynamic", f"has {pattern!r}, which is no pattern for the names of modules") from None
    return config


def require(tensors: Tensors, name: str, dtypes: Collection[str], *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Its shape, if it is there, and of one of these types and shapes; -1 in a shape: any size. No shape: any."""
    if name not in tensors.names():
        raise bad(tensors, name, "is missing")
    dtype, shape = tensors.dtype(name), tensors.shape(name)
    if dtype not in dtypes:
        raise bad(tensors, name, f"is of type {dtype} instead of {' or '.join(dtypes)}")
    fits = (len(shape) == len(wanted) and all(w in (-1, s) for s, w in zip(shape, wanted, strict=True)) for wanted in shapes)
    if (shapes and not any(fits)) or 0 in shape:
        expected = " or ".join(str(["any" if size == -1 else size for size in wanted]) for wanted in shapes)
        raise bad(tensors, name, f"has the shape {list(shape)} instead of {expected}")
    return shape


def group_of(tensors: Tensors, name: str, qtype: str, n_in: int, stored: int) -> int:
    """The group that a Weight of n_in columns can have, where scales are stored for `stored` columns each, the last for the rest.

    Where groups do not divide the columns, it is a part of them.
    """
    group = n_in if stored >= n_in else math.gcd(n_in, stored)
    if n_in % ROW_UNIT or group % GROUP_UNIT[qtype]:
        raise bad(
            tensors,
            name,
            f"has {n_in} columns with a scale for each {stored}, but groups of multiples of {GROUP_UNIT[qtype]} are needed",
            "Take the model in another quantisation.",
        )
    return group


def regroup(values: Tensor, stored: int, group: int, n_in: int) -> Tensor:
    """[out, ceil(n_in / stored)] -> [out, n_in / group], contiguous, where `group` divides `stored` or is all columns."""
    if group == stored or values.shape[1] == n_in // group:
        return values.contiguous()
    return values.repeat_interleave(stored // group, 1)[:, : n_in // group].contiguous()


def unpack(words: Tensor, bits: int, n_values: int) -> Tensor:
    """int32 [rows, words] of values packed without gaps, the lowest bits first -> uint8 [rows, n_values]."""
    rows = words.shape[0]
    if bits in (2, 4, 8):
        octets = words.contiguous().view(torch.uint8)
        if bits == 8:
            return octets[:, :n_values]
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        return (octets.unsqueeze(-1) >> shifts & (1 << bits) - 1).flatten(1)[:, :n_values]
    starts = torch.arange(n_values) * bits
    first, shift = starts // 32, starts % 32
    second = (first + 1).clamp(max=words.shape[1] - 1)
    values = torch.empty(rows, n_values, dtype=torch.uint8)
    step = max(1, _TILE_VALUES // n_values)
    for start in range(0, rows, step):
        tile = words[start : start + step].long() & 0xFFFFFFFF
        values[start : start + step] = (tile[:, first] >> shift | tile[:, second] << 32 - shift) & (1 << bits) - 1
    return values


def nibbles(values: Tensor) -> Tensor:
    """uint8 [rows, n], each below 16 -> uint8 [rows, n / 2], the first of two in the low nibble."""
    pairs = values.contiguous().view(torch.int16)
    return (pairs | pairs >> 4).to(torch.uint8)


def integers(q: Tensor, zeros: Tensor | None, scales: Tensor, bits: int, order: Tensor | None = None) -> Weight:
    """A Weight of (q - zeros) * scales, as INT4 or INT8.

    q uint8 [out, in], of `bits`; zeros integers [out, in / group], up to 2^bits, None for 2^(bits - 1); scales float32. Both are
    moved so that the middle of their range is that of the type, which has no zeros where all are there.
    """
    qtype, moved = ("INT4", 8 - (1 << bits - 1)) if bits <= 4 else ("INT8", -(1 << bits - 1))
    data = nibbles(q + moved if moved else q) if qtype == "INT4" else (q ^ 128 if bits == 8 else q + moved).view(torch.int8)
    return Weight(qtype, tuple(q.shape), data.contiguous(), scales, _points(zeros, qtype, moved), order)


def packed_integers(
    words: Tensor, n_in: int, zeros: Tensor | None, scales: Tensor, bits: int, order: Tensor | None = None
) -> Weight:
    """`integers` of int32 [out, words] as of `unpack`, columns in `order`. Those of four bits lie as INT4 has them already."""
    if bits == 4 and order is None:
        data = words.contiguous().view(torch.uint8)[:, : n_in // 2].contiguous()
        return Weight("INT4", (words.shape[0], n_in), data, scales, _points(zeros, "INT4", 0))
    q = unpack(words, bits, n_in)
    if order is not None:
        return integers(q[:, order], zeros, scales, bits, order.int())
    return integers(q, zeros, scales, bits)


def _points(zeros: Tensor | None, qtype: str, moved: int) -> Tensor | None:
    """As a Weight has them: none where all are in the middle."""
    if zeros is None:
        return None
    zeros = zeros.to(torch.int16) + moved
    return None if (zeros == ZERO_POINTS[qtype]).all() else zeros.to(ZEROS[qtype]).contiguous()


def scale_values(stored: Tensor) -> Tensor:
    """Scales as float32: of floats, of E8M0, or of a byte that holds the exponent of E8M0."""
    if stored.dtype == torch.uint8:
        stored = stored.view(torch.float8_e8m0fnu)
    return stored.float()
