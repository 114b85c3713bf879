"""Products of which each head has its own matrix, natively."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.launch import empty, launch, native
from kernels.cpu.support import require, require_shape, unsupported, whole, whole_rows
from kernels.ops import DENSE, Impl, OpSpec

_TYPES = {dtype: i for i, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16))}
"""As HeadsType of heads.h numbers them."""


def heads_linear(x: Tensor, weight: Tensor, kept: int = 0) -> Tensor:
    n_heads, n_in, n_out = weight.shape
    require(torch.float32, x=x)
    require_shape((len(x), n_heads, kept + n_in), x=x)
    if weight.dtype not in _TYPES:
        raise ValueError(f"weight is of {weight.dtype}, not of {' or '.join(map(str, _TYPES))}.")
    x, weight = whole_rows(x), whole(weight)
    out = empty(len(x), n_heads, kept + n_out)
    launch(native.HeadsLinear, out, x, x.stride(0), n_heads, kept, weight, _TYPES[weight.dtype], n_in, n_out, n_rows=len(x))
    return out


def _unsupported(spec: OpSpec) -> str | None:
    return f"matrices of type {spec.qtype}" if spec.qtype not in (None, *DENSE) else unsupported(spec)


_SPECS = tuple(OpSpec(dtype=torch.float32, qtype=qtype) for qtype in DENSE)

IMPLS = (Impl("heads_linear", "cpp", heads_linear, _unsupported, _SPECS),)
