"""Matrix product with a weight that stays as its file has it, and row look-up in such a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.ops import Weight
from kernels.reference.activation import gelu_tanh_mul, silu_mul
from kernels.reference.dequant import dense

_TILE_VALUES = 1 << 18
"""Values dequantised at once: 1 MiB of float32 stays in a core's cache until it is multiplied; smaller tiles only add calls."""


def quant_linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    n_out, n_in = weight.shape
    wide = x.float()
    if weight.order is not None:
        wide, weight = wide[:, weight.order], replace(weight, order=None)
    if weight.qtype == "F32":
        y = wide @ weight.data.T
    else:
        y = wide.new_empty(x.shape[0], n_out)
        n_rows = max(1, _TILE_VALUES // n_in)
        buffer = wide.new_empty(min(n_rows, n_out), n_in)
        for start in range(0, n_out, n_rows):
            part = slice(start, min(start + n_rows, n_out))
            y[:, part] = wide @ dense(weight.map(lambda tensor, part=part: tensor[part]), buffer[: part.stop - start]).T
    return (y if bias is None else y.add_(bias.float())).to(x.dtype)


def quant_linears(x: Tensor, weights: Sequence[Weight], biases: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    return tuple(quant_linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))


def gated_linear(x: Tensor, gate: Weight, up: Weight, biases: tuple[Tensor | None, Tensor | None], activation: str) -> Tensor:
    activate = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}[activation]
    return activate(quant_linear(x, gate, biases[0]), quant_linear(x, up, biases[1]))


def embedding(ids: Tensor, weight: Weight, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    values = dense(weight.map(lambda tensor: tensor[ids])).to(dtype)
    return values if scale == 1.0 else values * scale
