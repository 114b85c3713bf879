"""FP8: matrices in the E4M3 of arXiv:2209.05433 as they are, with a scale for all of a matrix, each row, or each block.

A matrix is named weight, its scale weight_scale or weight_scale_inv, which both multiply. Written so by DeepSeek-V3 and its
successors (blocks of 128 x 128), by transformers ("fp8", "fbgemm_fp8"), by ModelOpt and by compressed-tensors. Scales of
activations have no use here: activations stay as exact as they are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.errors import ModelLoadError
from engine.quant.base import FLOATS, Found, Matrix, Tensors, bad, group_of, require, scale_values
from engine.weights.fields import Fields
from kernels.ops import Weight

SCALES = ("weight_scale_inv", "weight_scale")
_SCALE_TYPES = (*FLOATS, "F8_E8M0", "U8")
ACTIVATIONS = ("input_scale", "activation_scale", "input_scale_ub", "output_scale", "k_scale", "v_scale", "q_scale", "prob_scale")
"""Last parts of the names of tensors that are about activations, or the KV cache."""


def find(config: Fields, tensors: Tensors) -> Found:
    block = config.get("weight_block_size", None)
    if block is not None and not is_block(block):
        raise config.bad("weight_block_size", f"is {block}, expected the numbers of rows and columns of a block")
    return found(tensors, None if block is None else (block[0], block[1]))


def is_block(value: Any) -> bool:
    """Whether it is the numbers of rows and columns of a block."""
    return isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value)


def found(tensors: Tensors, block: tuple[int, int] | None) -> Found:
    result = Found(unused={name for name in tensors.names() if name.rpartition(".")[2] in ACTIVATIONS})
    for name in tensors.names():
        if tensors.dtype(name).startswith("F8_") and name.endswith(".weight"):
            result.matrices[name] = fp8_matrix(tensors, name.removesuffix(".weight"), block)
    if not result.matrices:
        raise ModelLoadError(f"{tensors.path}: no weight is of type F8_E4M3.", "Take a checkpoint that was saved quantised.")
    return result


def fp8_matrix(tensors: Tensors, module: str, block: tuple[int, int] | None) -> Matrix:
    """block: rows and columns of a scale, where there is neither one for all nor one for each row; (1, n) for groups of a row."""
    weight = f"{module}.weight"
    n_out, n_in = require(tensors, weight, ("F8_E4M3",), (-1, -1))
    scale = next((f"{module}.{part}" for part in SCALES if f"{module}.{part}" in tensors.names()), None)
    if scale is None:
        raise bad(tensors, weight, f"has no scale: neither {' nor '.join(SCALES)} is there")
    shapes = [(), (1,), (1, 1), (n_out,), (n_out, 1)]
    if block is not None:
        shapes.append((-(-n_out // block[0]), -(-n_in // block[1])))
    shape = require(tensors, scale, _SCALE_TYPES, *shapes)
    rows, columns = block if block is not None and shape == shapes[-1] else (1 if n_out in shape else n_out, n_in)
    group = group_of(tensors, weight, "FP8", n_in, columns)
    load = partial(_load, tensors, (weight, scale), rows, columns, group)
    return Matrix("FP8", (n_out, n_in), group, (weight, scale), load)


def _load(tensors: Tensors, parts: tuple[str, ...], rows: int, columns: int, group: int) -> Weight:
    data, scales = (tensors.tensor(name) for name in parts)
    n_out, n_in = data.shape
    scales = scale_values(scales).reshape(-(-n_out // rows), -1)
    scales = scales.repeat_interleave(rows, 0)[:n_out]
    if columns < n_in:
        scales = scales.repeat_interleave(columns // group, 1)[:, : n_in // group]
    return Weight("FP8", (n_out, n_in), data, scales.contiguous())
