"""Matrix product with a weight that stays as its file has it, and row look-up in such a weight."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import DENSE, Weight
from kernels.reference.dequant import dequantize


def quant_linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    y = x.float() @ _dense(weight.qtype, weight.data).T
    return (y if bias is None else y + bias.float()).to(x.dtype)


def embedding(ids: Tensor, weight: Weight, dtype: torch.dtype) -> Tensor:
    return _dense(weight.qtype, weight.data[ids]).to(dtype)


def _dense(qtype: str, data: Tensor) -> Tensor:
    return data.float() if qtype in DENSE else dequantize(qtype, data)
