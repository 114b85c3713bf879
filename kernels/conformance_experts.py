"""Cases of the operators of mixtures of experts: experts that begin within a panel, many rows for one expert, none for most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.conformance_weights import random_weight
from kernels.ops import OpSpec, Routing

Build = Callable[[torch.Generator], tuple[Any, ...]]

_SIZES = ((0, 4, 2, 16, 256), (1, 9, 4, 48, 512), (7, 5, 3, 40, 256), (70, 6, 2, 21, 256), (300, 2, 1, 16, 256))
"""Rows, experts, experts of a row, rows of an expert's weight, values of such a row."""


def _ids(n: int, n_experts: int, n_used: int, g: torch.Generator) -> Tensor:
    """Distinct in a row; expert 1 is never used where there are enough others."""
    chance = torch.rand(n, n_experts, generator=g)
    if n_used < n_experts - 1:
        chance[:, 1] = -1
    return chance.argsort(-1, descending=True)[:, :n_used].int()


def gated_cases(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for i, (n, n_experts, n_used, width, size) in enumerate(_SIZES):
        for activation in ("clipped",) if i == 1 else ("silu", "clipped") if i == 2 else ("gelu_tanh",) if i == 3 else ("silu",):

            def build(g: torch.Generator, n=n, e=n_experts, k=n_used, f=width, h=size, activation=activation) -> tuple[Any, ...]:
                # Small enough for some to be within the limits.
                x = (torch.randn(n, h, generator=g) / (16 if activation == "clipped" else 1)).to(spec.dtype)
                gate, up = (random_weight(spec.qtype, e * f, h, g) for _ in range(2))
                biases = tuple(torch.randn(e * f, generator=g).to(spec.dtype) if n % 2 else None for _ in range(2))
                factors = torch.rand(n, k, generator=g) + 0.25 if n in (1, 7, 300) else None
                return x, _ids(n, e, k, g), gate, up, biases, e, activation, 1.702, 7.0, factors

            yield f"{n} rows, {n_used} of {n_experts} experts of {width} x {size}, {activation}", build


def down_cases(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for n, n_experts, n_used, size, width in _SIZES:

        def build(g: torch.Generator, n=n, e=n_experts, k=n_used, h=size, f=width) -> tuple[Any, ...]:
            inner = torch.randn(n, k * f, generator=g).to(spec.dtype)
            gains = None if n == 70 else torch.rand(n, k, generator=g)
            down = random_weight(spec.qtype, e * h, f, g)
            return inner, _ids(n, e, k, g), gains, down, torch.randn(e * h, generator=g).to(spec.dtype) if n % 2 else None, e

        yield f"{n} rows, {n_used} of {n_experts} experts of {size} x {width}", build


_ROUTINGS = (
    ((8, False), Routing(2)),
    ((60, False), Routing(4, normalised=True)),
    ((32, False), Routing(4, "chosen")),
    ((16, True), Routing(3, "sigmoid", normalised=True, eps=1e-20, scale=2.5, n_groups=4, n_used_groups=2)),
    ((12, True), Routing(4, "sigmoid", normalised=True, eps=1e-6)),
    ((12, False), Routing(6, n_groups=3, n_used_groups=2, n_best=1, scale=16.0)),
    ((16, False), Routing(2, "chosen_sigmoid")),
)


def route_cases(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for (n_experts, biased), routing in _ROUTINGS:
        for n in (0, 1, 33):

            def build(g: torch.Generator, n=n, e=n_experts, biased=biased, routing=routing) -> tuple[Any, ...]:
                logits = torch.randn(n, e, generator=g)
                if n > 1:
                    logits[1] = 0.5  # equals: the lowest ids
                    logits[2] = torch.nan
                bias = torch.randn(e, generator=g) / 4 if biased and n != 33 else None
                return logits.to(spec.dtype), bias, routing, torch.rand(e, generator=g) + 0.5 if n == 33 else None

            yield f"{n} rows, {routing}", build


def add_cases(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for n, h, gated in ((0, 8, True), (1, 64, True), (5, 33, True), (3, 40, False)):

        def build(g: torch.Generator, n=n, h=h, gated=gated) -> tuple[Any, ...]:
            x, y = torch.randn(2, n, h, generator=g).to(spec.dtype).unbind()
            return x, y, (torch.randn(n, 3, generator=g) * 3).to(spec.dtype)[:, 1:2] if gated else None

        yield f"{n} x {h}{', gated' if gated else ''}", build


def product_cases(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for n, f in ((0, 8), (1, 64), (5, 33)):

        def build(g: torch.Generator, n=n, f=f) -> tuple[Any, ...]:
            x, y = (torch.randn(n, 3 * f, generator=g) * 5).to(spec.dtype)[:, f:].split(f, 1)
            return x, y

        yield f"{n} x {f}", build


CASES = {
    "mul": product_cases,
    "sigmoid_mul": product_cases,
    "experts_gated": gated_cases,
    "experts_down": down_cases,
    "route": route_cases,
    "add_gated": add_cases,
}
