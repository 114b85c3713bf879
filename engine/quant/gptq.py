"""GPTQ: integers of 2, 3, 4 or 8 bits, as AutoGPTQ and its successor GPTQModel store them, and auto-round.

Of a matrix [out, in] there are, with in * bits and out * bits in whole words of 32 bits,
- qweight int32 [in * bits / 32, out]: the integers of a column, without gaps, so that those of three bits cross words
- qzeros int32 [in / group, out * bits / 32]: zero points; scales float16 [in / group, out]
- g_idx int [in]: the group of each column, where they were quantised in the order of their importance (desc_act)

In version 1 of the format, zero points are one less. That is taken from, and here added to, whole words, as GPTQModel and
transformers do both, so that a zero point of 0 borrows from its neighbour. Three bits are the exception: other tools took it from
each, and what GPTQModel takes from words is one only by another order of them (_OF_GPTQMODEL).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.quant.base import (
    FLOATS,
    Found,
    Matrix,
    Tensors,
    bad,
    group_of,
    modules,
    own_settings,
    packed_integers,
    regroup,
    require,
    unpack,
)
from engine.weights.fields import Fields
from kernels.ops import Weight

BITS = (2, 3, 4, 8)
_OFFSETS = {"gptq": 1, "gptq_v2": 0}
"""What is missing from stored zero points, by the version of the format."""
_ONES = {2: (0x55555555,), 4: (0x11111111,), 8: (0x01010101,)}
"""Words of ones, by bits."""
_OF_GPTQMODEL = {**_ONES, 3: (0x24924924, 0x92492492, 0x49249249)}
"""What GPTQModel takes from the words of a row in turn."""


def find(config: Fields, tensors: Tensors) -> Found:
    version = config.text("checkpoint_format", config.section("meta").text("checkpoint_format", "gptq"))
    if version not in _OFFSETS or config.get("is_marlin_format", False):
        version = version if version not in _OFFSETS else "marlin"
        raise config.bad("checkpoint_format", f"is {version}", f"Take a checkpoint in one of {', '.join(_OFFSETS)}.")
    return found(config, tensors, _OFFSETS[version], config.get("dynamic", {}))


def found(config: Fields, tensors: Tensors, offset: int, overrides: Any) -> Found:
    """offset: what is missing from stored zero points; overrides: as base.own_settings takes them."""
    result = Found()
    for module in modules(tensors, "qweight"):
        bits, group = _numbers(config, tensors.stored_name(f"{module}.qweight").removesuffix(".qweight"), overrides)
        result.matrices[f"{module}.weight"] = _matrix(config, tensors, module, bits, group, offset)
    if not result.matrices:
        raise ModelLoadError(f"{tensors.path}: no tensor is named qweight.", "Take a checkpoint that was saved quantised.")
    return result


def _numbers(config: Fields, module: str, overrides: Any) -> tuple[int, int]:
    """Bits and group_size of a module; -1 for a group of a whole row."""
    own = own_settings(config, module, overrides)
    bits = own.integer("bits")
    if bits not in BITS:
        raise own.bad("bits", f"is {bits}", f"Take a checkpoint of {', '.join(map(str, BITS))} bits.")
    group = own.integer("group_size", -1, low=-1)
    if group == 0:
        raise own.bad("group_size", "is 0, expected a positive number, or -1 for a whole row")
    return bits, group


def _matrix(config: Fields, tensors: Tensors, module: str, bits: int, group: int, offset: int) -> Matrix:
    weight, zeros, scales, g_idx = (f"{module}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
    n_words, n_out = require(tensors, weight, ("I32",), (-1, -1))
    n_in = n_words * 32 // bits
    if n_words * 32 % bits or n_in % 32:
        raise bad(tensors, weight, f"has {n_words} rows, which hold no whole columns of {bits} bits")
    stored = n_in if group == -1 else group
    n_groups = -(-n_in // stored)
    require(tensors, scales, FLOATS, (n_groups, n_out))
    require(tensors, zeros, ("I32",), (n_groups, -(-n_out * bits // 32)))
    parts = (weight, zeros, scales)
    ordered = g_idx in tensors.names()
    if ordered:
        require(tensors, g_idx, ("I32", "I64"), (n_in,))
        parts += (g_idx,)
    qtype = "INT4" if bits <= 4 else "INT8"
    unit = group_of(tensors, weight, qtype, n_in, stored)
    by_gptqmodel = "gptqmodel" in str(config.section("meta").get("quantizer", ""))
    missing = offset, (_OF_GPTQMODEL if by_gptqmodel else _ONES).get(bits)
    load = partial(_load, tensors, parts, bits, stored, unit, missing)
    is_ordered = ordered and config.flag("desc_act", False)
    n_copies = 4 if is_ordered else 2 if bits == 8 else 1 if bits == 4 else 3
    return Matrix(qtype, (n_out, n_in), unit, parts, load, zeros=True, order=is_ordered, n_copies=n_copies)


def _load(
    tensors: Tensors, parts: tuple[str, ...], bits: int, stored: int, group: int, missing: tuple[int, tuple[int, ...] | None]
) -> Weight:
    """missing: see _zero_points."""
    words, packed_zeros, factors, *index = (tensors.tensor(name) for name in parts)
    n_in, n_out = words.shape[0] * 32 // bits, words.shape[1]
    zeros = _zero_points(packed_zeros, bits, n_out, *missing)
    order = column_order(tensors, parts[-1], index[0].long(), stored, zeros.shape[1]) if index else None
    zeros, scales = (regroup(values, stored, group, n_in) for values in (zeros, factors.T.float()))
    return packed_integers(words.T, n_in, zeros, scales, bits, order)


def _zero_points(words: Tensor, bits: int, n_out: int, offset: int, taken: tuple[int, ...] | None) -> Tensor:
    """int32 [in / group, words] -> int16 [out, in / group].

    offset: what is missing from each, that is, from words in turn what `taken` says; None: from each by itself.
    """
    if offset and taken is not None:
        words = (words.long() + torch.tensor(taken).repeat(-(-words.shape[1] // len(taken)))[: words.shape[1]]).int()
        offset = 0
    zeros = unpack(words, bits, n_out).T.to(torch.int16)
    return zeros + offset & (1 << bits) - 1


def column_order(tensors: Tensors, name: str, index: Tensor, stored: int, n_groups: int) -> Tensor | None:
    """Columns by their groups, from the group of each; None where they are so already. Raises ModelLoadError."""
    if index.min() < 0 or index.max() >= n_groups:
        raise bad(tensors, name, f"names groups from {index.min()} to {index.max()}, but there are {n_groups}")
    in_order = torch.arange(len(index)) // stored
    if torch.equal(index, in_order):
        return None
    order = index.argsort(stable=True)
    if not torch.equal(index[order], in_order):
        raise bad(tensors, name, f"has groups that are not of {stored} columns each", "Take another quantisation of the model.")
    return order
