"""Cases of products of which each head has its own matrix, and of sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernels.ops import DENSE, OpSpec

Build = Callable[[torch.Generator], tuple[Any, ...]]


def heads_cases(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for n, heads, kept, n_in, n_out in (
        (0, 2, 0, 8, 8),
        (1, 3, 64, 128, 512),
        (5, 2, 8, 24, 37),
        (37, 2, 0, 512, 128),
        (4, 1, 3, 5, 3),
    ):

        def build(g: torch.Generator, n=n, heads=heads, kept=kept, n_in=n_in, n_out=n_out) -> tuple[Any, ...]:
            x = torch.randn(n, heads + 1, kept + n_in, generator=g).to(spec.dtype)[:, :heads]  # a slice of wider rows
            return x, torch.randn(heads, n_in, n_out, generator=g).to(DENSE[spec.qtype]), kept

        yield f"{n} rows, {heads} heads, {kept} kept, {n_in} to {n_out}", build


def sum_cases(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for n, h in ((0, 8), (1, 64), (5, 33), (9, 4000)):

        def build(g: torch.Generator, n=n, h=h) -> tuple[Any, ...]:
            return *torch.randn(2, n, h, generator=g).to(spec.dtype).unbind(), 0.7

        yield f"{n} x {h}", build
