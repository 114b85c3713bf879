"""MXFP4 as gpt-oss has it: of all experts of a projection NAME_blocks, uint8 [E, out, in / 32, 16], two numbers in a byte, and
NAME_scales, uint8 [E, out, in / 32], the exponents of powers of two (transformers' integrations/mxfp4.py).
"""

from __future__ import annotations

from functools import partial

from engine.quant.base import Found, Matrix, Tensors, bad, require, scale_values
from engine.weights.fields import Fields
from kernels.ops import Weight

_GROUP = 32
_BLOCK_BYTES = 16


def find(config: Fields, tensors: Tensors) -> Found:
    """Each matrix has the rows of all experts, one behind the other."""
    matrices = {}
    for blocks in [name for name in tensors.names() if name.endswith("_blocks")]:
        name = blocks.removesuffix("_blocks")
        n_experts, n_out, n_groups, n_bytes = require(tensors, blocks, ("U8",), (-1, -1, -1, -1))
        if n_bytes != _BLOCK_BYTES:
            raise bad(tensors, blocks, f"has blocks of {n_bytes} bytes instead of {_BLOCK_BYTES}")
        scales = f"{name}_scales"
        require(tensors, scales, ("U8", "F8_E8M0"), (n_experts, n_out, n_groups))
        shape = n_experts * n_out, n_groups * _GROUP
        parts = blocks, scales
        matrices[name] = Matrix("E2M1", shape, _GROUP, parts, partial(_load, tensors, parts, shape))
    return Found(matrices)


def _load(tensors: Tensors, parts: tuple[str, str], shape: tuple[int, int]) -> Weight:
    blocks, scales = map(tensors.tensor, parts)
    return Weight("E2M1", shape, blocks.reshape(shape[0], -1), scale_values(scales).reshape(shape[0], -1).contiguous())
