"""Mixture of experts: which experts a row goes to, and what they make of it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.ops import Routing, Weight
from kernels.reference.activation import gelu_tanh_mul, silu_mul
from kernels.reference.linear import quant_linear


def route(logits: Tensor, bias: Tensor | None, routing: Routing, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    logits = logits.float()
    scores = {"softmax": lambda: torch.softmax(logits, -1), "sigmoid": logits.sigmoid}.get(routing.scores, lambda: logits)()
    choice = (scores if bias is None else scores + bias).nan_to_num(-torch.inf, torch.inf, -torch.inf)
    if routing.n_groups > 1:
        grouped = choice.unflatten(1, (routing.n_groups, -1))
        of_group = grouped.sort(-1, descending=True).values[..., : routing.n_best].sum(-1)
        left_out = torch.sort(of_group, dim=-1, descending=True, stable=True).indices[:, routing.n_used_groups :]
        choice = grouped.scatter(1, left_out[..., None].expand(-1, -1, grouped.shape[-1]), -torch.inf).flatten(1)
    ids = torch.sort(choice, dim=-1, descending=True, stable=True).indices[:, : routing.n_used]
    gains = scores.gather(1, ids)
    if routing.scores == "chosen":
        gains = torch.softmax(gains, -1)
    elif routing.scores == "chosen_sigmoid":
        gains = gains.sigmoid()
    if routing.normalised:
        gains = gains / (_in_order(gains) + routing.eps)
    gains = gains * routing.scale
    return ids.int(), gains if factors is None else gains * factors[ids]


def experts_gated(
    x: Tensor,
    ids: Tensor,
    gate: Weight,
    up: Weight,
    biases: tuple[Tensor | None, Tensor | None],
    n_experts: int,
    activation: str,
    alpha: float = 1.0,
    limit: float = 0.0,
    factors: Tensor | None = None,
) -> Tensor:
    out = x.new_empty(*ids.shape, gate.shape[0] // n_experts)
    for expert, rows, slots in _by_expert(ids):
        given = x[rows] if factors is None else x[rows].float() * factors[rows, slots, None]
        halves = (_of_expert(given, weight, bias, expert, n_experts) for weight, bias in zip((gate, up), biases, strict=True))
        out[rows, slots] = _activated(*halves, activation, alpha, limit).to(x.dtype)
    return out.flatten(1)


def experts_down(inner: Tensor, ids: Tensor, gains: Tensor | None, down: Weight, bias: Tensor | None, n_experts: int) -> Tensor:
    slotted = inner.unflatten(1, (ids.shape[1], -1))
    out = inner.new_empty(*ids.shape, down.shape[0] // n_experts)
    for expert, rows, slots in _by_expert(ids):
        out[rows, slots] = _of_expert(slotted[rows, slots], down, bias, expert, n_experts)
    weighed = out.float() if gains is None else out.float() * gains[..., None]
    return _in_order(weighed, dim=1)[:, 0].to(inner.dtype)


def add_gated(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    return (x.float() + (y.float() if gate is None else y.float() * gate.float().sigmoid())).to(x.dtype)


def mul(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() * y.float()).to(x.dtype)


def sigmoid_mul(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() * y.float().sigmoid()).to(x.dtype)


def _in_order(x: Tensor, dim: int = -1) -> Tensor:
    """The sum along a dim, which is kept, from its first element to its last."""
    first, *rest = x.split(1, dim)
    for part in rest:
        first = first + part
    return first


def _by_expert(ids: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(expert, the rows that go to it, the slot of each)"""
    for expert in ids.unique().tolist():
        yield expert, *(ids == expert).nonzero(as_tuple=True)


def _of_expert(x: Tensor, weight: Weight, bias: Tensor | None, expert: int, n_experts: int) -> Tensor:
    size = weight.shape[0] // n_experts
    part = slice(expert * size, (expert + 1) * size)
    return quant_linear(x, weight.map(lambda tensor: tensor[part]), None if bias is None else bias[part])


def _activated(gate: Tensor, up: Tensor, activation: str, alpha: float, limit: float) -> Tensor:
    if activation == "clipped":
        bounded, raised = gate.float().clamp(max=limit), up.float().clamp(-limit, limit) + 1
        return (bounded * (bounded * alpha).sigmoid() * raised).to(gate.dtype)
    return {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}[activation](gate, up)
