"""Norms and gated activations, natively."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.launch import empty, launch, native
from kernels.cpu.support import require, require_shape, unsupported, whole_rows
from kernels.ops import Impl, OpSpec


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    size = x.shape[-1]
    require(torch.float32, x=x, weight=weight)
    require_shape((size,), weight=weight)
    heads = x[0].numel() // size if x.dim() > 2 and len(x) else 1
    x, weight = whole_rows(x), weight.contiguous()
    out = empty(*x.shape)
    launch(native.RMSNorm, out, x, weight, heads, size, x.stride(0) if x.dim() > 1 else size, eps, n_rows=_n_rows(x))
    return out


def rms_norm_add(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    require(torch.float32, x=x, residual=residual, weight=weight)
    require_shape(tuple(x.shape), residual=residual)
    require_shape((x.shape[-1],), weight=weight)
    x, residual, weight = x.contiguous(), residual.contiguous(), weight.contiguous()
    out, total = empty(*x.shape), empty(*x.shape)
    launch(native.RMSNormAdd, out, total, x, residual, weight, x.shape[-1], eps, n_rows=len(x))
    return out, total


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return _gated(gate, up, gelu=False)


def gelu_tanh_mul(gate: Tensor, up: Tensor) -> Tensor:
    return _gated(gate, up, gelu=True)


def _gated(gate: Tensor, up: Tensor, *, gelu: bool) -> Tensor:
    require(torch.float32, gate=gate, up=up)
    require_shape(tuple(gate.shape), up=up)
    gate, up = whole_rows(gate), whole_rows(up)
    out = empty(*gate.shape)
    launch(native.GatedActivation, out, gate, up, gate.shape[1], gate.stride(0), up.stride(0), gelu, n_rows=len(gate))
    return out


def _n_rows(x: Tensor) -> int:
    return len(x) if x.dim() > 1 else 1


IMPLS = tuple(
    Impl(op, "cpp", fn, unsupported, (OpSpec(dtype=torch.float32),))
    for op, fn in (
        ("rms_norm", rms_norm),
        ("rms_norm_add", rms_norm_add),
        ("silu_mul", silu_mul),
        ("gelu_tanh_mul", gelu_tanh_mul),
    )
)
