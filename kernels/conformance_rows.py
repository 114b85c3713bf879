"""Inputs of the conformance suite for operators on rows that few families have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernels.ops import OpSpec

Build = Callable[[torch.Generator], tuple[Any, ...]]


def _layer_norm(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for shape, of_heads, bias in (
        *(((1, 576), False, True), ((5, 2048), False, False), ((0, 64), False, True), ((2, 33), False, True)),
        *(((7, 3, 64), False, False), ((3, 4, 80), True, False)),
    ):

        def build(
            g: torch.Generator, shape: tuple[int, ...] = shape, of_heads: bool = of_heads, bias: bool = bias
        ) -> tuple[Any, ...]:
            x = torch.randn(shape, generator=g) + 3
            x[:1] *= 100
            if len(x) > 1:
                x[-1] = 0
            weight = torch.randn(shape[1:] if of_heads else shape[-1:], generator=g)
            return x.to(spec.dtype), weight, torch.randn(shape[-1], generator=g) if bias else None, 1e-5

        yield f"shape {shape}{', a weight for each head' if of_heads else ''}", build


def _add(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for n, h in ((1, 576), (0, 64), (9, 33)):
        yield f"{n} x {h}", lambda g, n=n, h=h: torch.randn(2, n, h, generator=g).to(spec.dtype).unbind()


def _scale_rows(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for shape in ((1, 64), (0, 3, 64), (9, 3, 33)):

        def build(g: torch.Generator, shape: tuple[int, ...] = shape) -> tuple[Any, ...]:
            x = torch.randn(shape, generator=g).to(spec.dtype)
            return x, torch.rand(40, generator=g) + 1, torch.randint(0, 40, shape[:1], generator=g)

        yield f"shape {shape}", build


def _activation(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for n, f in ((0, 8), (1, 1536), (5, 33)):
        yield f"{n} x {f}", lambda g, n=n, f=f: ((torch.randn(n, f, generator=g) * 10).to(spec.dtype),)


CASES: dict[str, Callable[[OpSpec], Iterator[tuple[str, Build]]]] = {
    "layer_norm": _layer_norm,
    "add": _add,
    "scale_rows": _scale_rows,
    "gelu_tanh": _activation,
    "relu_squared": _activation,
}
