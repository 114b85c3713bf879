"""Norms, sums and activations of rows, natively."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.launch import empty, launch, native
from kernels.cpu.support import require, require_shape, unsupported, whole, whole_rows
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


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    size = x.shape[-1]
    require(torch.float32, x=x, weight=weight, bias=bias)
    require_shape((size,), bias=bias)
    require_shape(tuple(x.shape[-weight.dim() :]) if weight.dim() < x.dim() else (size,), weight=weight)
    heads = x[0].numel() // size if x.dim() > 2 and len(x) else 1
    x, weight, stride = whole_rows(x), weight.contiguous(), size if weight.dim() > 1 else 0
    out, x_stride = empty(*x.shape), x.stride(0) if x.dim() > 1 else size
    launch(native.LayerNorm, out, x, weight, whole(bias), heads, size, x_stride, stride, eps, n_rows=_n_rows(x))
    return out


def add(x: Tensor, y: Tensor) -> Tensor:
    require(torch.float32, x=x, y=y)
    require_shape(tuple(x.shape), y=y)
    x, y = whole_rows(x), whole_rows(y)
    out = empty(*x.shape)
    launch(native.Add, out, x, y, x.shape[1], x.stride(0), y.stride(0), n_rows=len(x))
    return out


def scale_rows(x: Tensor, factors: Tensor, positions: Tensor) -> Tensor:
    require(torch.float32, x=x, factors=factors)
    require(torch.int64, positions=positions)
    require_shape((len(x),), positions=positions)
    x = whole_rows(x)
    out, size = empty(*x.shape), x.shape[1:].numel()
    launch(native.ScaleRows, out, x, whole(factors), whole(positions), size, x.stride(0), n_rows=len(x))
    return out


def gelu_tanh(x: Tensor) -> Tensor:
    return _activation(x, gelu=True)


def relu_squared(x: Tensor) -> Tensor:
    return _activation(x, gelu=False)


def _activation(x: Tensor, *, gelu: bool) -> Tensor:
    require(torch.float32, x=x)
    x = whole_rows(x)
    out = empty(*x.shape)
    launch(native.Activation, out, x, x.shape[1], x.stride(0), gelu, n_rows=len(x))
    return out


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
        ("layer_norm", layer_norm),
        ("add", add),
        ("scale_rows", scale_rows),
        ("silu_mul", silu_mul),
        ("gelu_tanh_mul", gelu_tanh_mul),
        ("gelu_tanh", gelu_tanh),
        ("relu_squared", relu_squared),
    )
)
