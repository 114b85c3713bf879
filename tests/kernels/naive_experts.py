"""The operators of mixtures of experts a second time, pair by pair, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kernels.ops import Routing, Weight


def route(logits: Tensor, bias: Tensor | None, routing: Routing, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """By sorting Python tuples."""
    n, n_experts = logits.shape
    ids, gains = torch.zeros(n, routing.n_used, dtype=torch.int32), torch.zeros(n, routing.n_used)
    size = n_experts // routing.n_groups
    for row, of_row in enumerate(logits.double().tolist()):
        if routing.scores == "softmax":
            scores = _softmax(of_row)
        else:
            scores = [_sigmoid(x) for x in of_row] if routing.scores == "sigmoid" else of_row
        choice = scores if bias is None else [score + add for score, add in zip(scores, bias.double().tolist(), strict=True)]
        choice = [-math.inf if math.isnan(x) else x for x in choice]
        best = [sum(sorted(choice[g * size : (g + 1) * size])[::-1][: routing.n_best]) for g in range(routing.n_groups)]
        groups = sorted(range(routing.n_groups), key=lambda g: (-best[g], g))[: routing.n_used_groups]
        allowed = [i for i in range(n_experts) if i // size in groups]
        chosen = sorted(allowed, key=lambda i: (-choice[i], i))[: routing.n_used]
        of_chosen = [scores[i] for i in chosen]
        if routing.scores == "chosen":
            of_chosen = _softmax(of_chosen)
        if routing.scores == "chosen_sigmoid":
            of_chosen = [_sigmoid(x) for x in of_chosen]
        total = sum(of_chosen) + routing.eps if routing.normalised else 1.0
        ids[row] = torch.tensor(chosen)
        of_experts = [1.0 if factors is None else float(factors[i]) for i in chosen]
        gains[row] = torch.tensor([gain / total * routing.scale * of for gain, of in zip(of_chosen, of_experts, strict=True)])
    return ids, gains


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _softmax(values: list[float]) -> list[float]:
    most = max((x for x in values if not math.isnan(x)), default=0.0)
    weights = [math.exp(x - most) for x in values]
    return [weight / sum(weights) for weight in weights]


def experts_gated(dense: Callable[[Weight], Tensor]) -> Callable[..., Tensor]:
    """dense: a weight's values in float64."""

    def experts_gated(
        x: Tensor, ids: Tensor, gate: Weight, up: Weight, biases: tuple[Tensor | None, Tensor | None], n_experts: int,
        activation: str, alpha: float = 1.0, limit: float = 0.0, factors: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        width = gate.shape[0] // n_experts
        values = [dense(weight).view(n_experts, width, -1) for weight in (gate, up)]
        added = [0 if bias is None else bias.double().view(n_experts, width)[ids.long()] for bias in biases]
        given = x.double()[:, None] * (torch.ones(*ids.shape) if factors is None else factors).double()[..., None]
        gated, raised = (
            torch.einsum("nkh,nkfh->nkf", given, of_all[ids.long()]) + bias for of_all, bias in zip(values, added, strict=True)
        )
        if activation == "clipped":
            gated, raised = gated.clamp(max=limit), raised.clamp(-limit, limit) + 1
            out = gated / (1 + (-alpha * gated).exp())
        elif activation == "silu":
            out = gated / (1 + (-gated).exp())
        else:
            out = 0.5 * gated * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gated + 0.044715 * gated**3)))
        return (out * raised).flatten(1).to(x.dtype)

    return experts_gated


def experts_down(dense: Callable[[Weight], Tensor]) -> Callable[..., Tensor]:
    """dense: a weight's values in float64."""

    def experts_down(
        inner: Tensor, ids: Tensor, gains: Tensor | None, down: Weight, bias: Tensor | None, n_experts: int
    ) -> Tensor:
        of_all = dense(down).view(n_experts, -1, down.shape[1])[ids.long()]
        out = torch.einsum("nkf,nkhf->nkh", inner.double().unflatten(1, (ids.shape[1], -1)), of_all)
        if bias is not None:
            out = out + bias.double().view(n_experts, -1)[ids.long()]
        return (out if gains is None else out * gains.double()[..., None]).sum(1).to(inner.dtype)

    return experts_down


def add_gated(x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor:
    factor = 1 if gate is None else 1 / (1 + (-gate.double()).exp())
    return (x.double() + y.double() * factor).to(x.dtype)


def mul(x: Tensor, y: Tensor) -> Tensor:
    return (x.double() * y.double()).to(x.dtype)


def sigmoid_mul(x: Tensor, y: Tensor) -> Tensor:
    return (x.double() / (1 + (-y.double()).exp())).to(x.dtype)
