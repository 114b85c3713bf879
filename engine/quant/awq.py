"""AWQ: integers of four bits in the gemm layout of AutoAWQ.

Of a matrix [out, in] there are qweight int32 [in, out / 8], qzeros int32 [in / group, out / 8] and scales float16
[in / group, out]. A word holds eight neighbours of a row, whose order in it suits the kernels of its authors.
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
    group_of,
    integers,
    modules,
    own_settings,
    regroup,
    require,
    unpack,
)
from engine.weights.fields import Fields
from kernels.ops import Weight

BITS = 4
_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Which nibble of a word, from the lowest, holds the first of its eight values, the second ..."""
_VERSIONS = ("gemm", "exllama", "ipex")
"""Names of the same layout; the last two are what is to read it."""


def find(config: Fields, tensors: Tensors) -> Found:
    version = config.text("version", "gemm").lower()
    if version not in _VERSIONS:
        raise config.bad("version", f"is {version}", f"Take a checkpoint in one of {', '.join(_VERSIONS)}.")
    return found(config, tensors, {})


def found(config: Fields, tensors: Tensors, overrides: Any) -> Found:
    """overrides: as base.own_settings takes them."""
    result = Found()
    for module in modules(tensors, "qweight"):
        own = own_settings(config, tensors.stored_name(f"{module}.qweight").removesuffix(".qweight"), overrides)
        result.matrices[f"{module}.weight"] = _matrix(tensors, module, _group(own))
    if not result.matrices:
        raise ModelLoadError(f"{tensors.path}: no tensor is named qweight.", "Take a checkpoint that was saved quantised.")
    return result


def _group(config: Fields) -> int:
    bits = config.integer("bits", config.get("w_bit", BITS))
    if bits != BITS:
        raise config.bad("bits", f"is {bits}", f"Take a checkpoint of {BITS} bits, or in another quantisation.")
    group = config.integer("group_size", config.get("q_group_size", -1), low=-1)
    if group == 0:
        raise config.bad("group_size", "is 0, expected a positive number, or -1 for a whole row")
    return group


def _matrix(tensors: Tensors, module: str, group: int) -> Matrix:
    parts = tuple(f"{module}.{part}" for part in ("qweight", "qzeros", "scales"))
    n_in, n_words = require(tensors, parts[0], ("I32",), (-1, -1))
    stored, n_out = n_in if group == -1 else group, n_words * 8
    n_groups = -(-n_in // stored)
    require(tensors, parts[1], ("I32",), (n_groups, n_words))
    require(tensors, parts[2], FLOATS, (n_groups, n_out))
    unit = group_of(tensors, parts[0], "INT4", n_in, stored)
    load = partial(_load, tensors, parts, stored, unit)
    return Matrix("INT4", (n_out, n_in), unit, parts, load, zeros=True, n_copies=3)


def _load(tensors: Tensors, parts: tuple[str, ...], stored: int, group: int) -> Weight:
    words, zeros, scales = (tensors.tensor(name) for name in parts)
    zeros, scales = (regroup(values, stored, group, len(words)) for values in (_values(zeros), scales.T.float()))
    return integers(_values(words), zeros, scales, BITS)


def _values(words: Tensor) -> Tensor:
    """int32 [in, out / 8] -> uint8 [out, in]"""
    in_order = torch.zeros_like(words)
    for i, place in enumerate(_PLACES):
        in_order |= (words >> 4 * place & 15) << 4 * i
    return unpack(in_order, BITS, words.shape[1] * 8).T.contiguous()
