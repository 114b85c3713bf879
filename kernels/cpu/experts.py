"""Mixture of experts, natively: each row meets the weights of its own experts only."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from kernels.cpu import linear
from kernels.cpu.launch import empty, launch, native
from kernels.cpu.linear import PackedWeight
from kernels.cpu.support import require, require_shape, unsupported, whole, whole_rows
from kernels.ops import Impl, OpSpec, Routing

_ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "clipped": 2}
_SCORES = {"softmax": 0, "sigmoid": 1, "chosen": 2, "chosen_sigmoid": 3}
"""As experts.cpp numbers them."""


def route(logits: Tensor, bias: Tensor | None, routing: Routing, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """ValueError where so many experts cannot be had from so many groups."""
    n_experts = logits.shape[1]
    require(torch.float32, logits=logits, bias=bias, factors=factors)
    require_shape((n_experts,), bias=bias, factors=factors)
    logits = whole_rows(logits)
    ids, gains = (empty(len(logits), routing.n_used, dtype=dtype) for dtype in (torch.int32, torch.float32))
    gained = routing.n_used, _SCORES[routing.scores], routing.normalised, routing.eps, routing.scale
    groups = routing.n_groups, routing.n_used_groups, routing.n_best
    args = ids, gains, logits, logits.stride(0), whole(bias), n_experts, *gained, *groups, whole(factors)
    launch(native.Route, *args, n_rows=len(logits))
    return ids, gains


def experts_gated(
    x: Tensor,
    ids: Tensor,
    gate: PackedWeight,
    up: PackedWeight,
    biases: tuple[Tensor | None, Tensor | None],
    n_experts: int,
    activation: str,
    alpha: float = 1.0,
    limit: float = 0.0,
    factors: Tensor | None = None,
    *,
    exact: bool = False,
) -> Tensor:
    require(torch.int32, ids=ids)
    require(torch.float32, x=x, gate_bias=biases[0], up_bias=biases[1], factors=factors)
    require_shape(tuple(ids.shape), factors=factors)
    require_shape((gate.shape[0],), gate_bias=biases[0], up_bias=biases[1])
    if gate.shape != up.shape or gate.shape[1] != x.shape[1] or len(ids) != len(x):
        raise ValueError(f"Rows {tuple(x.shape)} of experts {tuple(ids.shape)} do not fit gate {gate.shape} and up {up.shape}.")
    x = whole_rows(x)
    out = empty(len(x), ids.shape[1] * (gate.shape[0] // n_experts))
    weights = (gate.native, up.native, *map(whole, biases), n_experts)
    how = _ACTIVATIONS[activation], alpha, limit, exact, whole(factors)
    launch(native.ExpertsGated, out, x, x.stride(0), ids.contiguous(), ids.shape[1], *weights, *how, n_rows=len(x))
    return out


def experts_down(
    inner: Tensor,
    ids: Tensor,
    gains: Tensor | None,
    down: PackedWeight,
    bias: Tensor | None,
    n_experts: int,
    *,
    exact: bool = False,
) -> Tensor:
    n_rows, n_used = ids.shape
    require(torch.int32, ids=ids)
    require(torch.float32, inner=inner, gains=gains, bias=bias)
    require_shape((down.shape[0],), bias=bias)
    require_shape((n_rows, n_used), gains=gains)
    require_shape((n_rows, n_used * down.shape[1]), inner=inner)
    out = empty(n_rows, down.shape[0] // n_experts)
    sources = (whole(inner), whole(ids), whole(gains), n_used)
    launch(native.ExpertsDown, out, *sources, down.native, whole(bias), n_experts, exact, n_rows=n_rows)
    return out


def add_gated(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    require(torch.float32, x=x, y=y, gate=gate)
    require_shape(tuple(x.shape), y=y)
    require_shape((len(x), 1), gate=gate)
    out = empty(*x.shape)
    stride = 0 if gate is None else gate.stride(0)
    launch(native.AddGated, out, whole(x), whole(y), gate, stride, x.shape[1], n_rows=len(x))
    return out


def mul(x: Tensor, y: Tensor, *, sigmoid: bool = False) -> Tensor:
    require(torch.float32, x=x, y=y)
    require_shape(tuple(x.shape), y=y)
    x, y = whole_rows(x), whole_rows(y)
    out = empty(*x.shape)
    launch(native.Product, out, x, x.stride(0), y, y.stride(0), x.shape[1], sigmoid, n_rows=len(x))
    return out


_PLAIN = (("route", route), ("add_gated", add_gated), ("mul", mul), ("sigmoid_mul", partial(mul, sigmoid=True)))

IMPLS = (
    *linear.products("experts_gated", experts_gated, partial(experts_gated, exact=True)),
    *linear.products("experts_down", experts_down, partial(experts_down, exact=True)),
    *(Impl(op, "cpp", fn, unsupported, (OpSpec(dtype=torch.float32),)) for op, fn in _PLAIN),
)
