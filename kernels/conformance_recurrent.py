"""Cases of the operators that carry a state: ragged batches, texts that begin and that go on, other states poisoned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.ops import OpSpec

Build = Callable[[torch.Generator], tuple[Any, ...]]

BATCHES: dict[str, tuple[tuple[int, int], ...]] = {
    "one token": ((1, 1),),
    "decodes": ((1, 9), (1, 2), (1, 70)),
    "chunks beside decodes and a sequence without rows": ((5, 5), (1, 30), (0, 4), (7, 20), (0, 0), (2, 3)),
    "a long chunk": ((70, 90),),
}
"""(query rows, context) of each sequence."""
_N_BLOCKS = 9


def _where(batch: tuple[tuple[int, int], ...], state: Tensor, g: torch.Generator) -> tuple[Tensor, ...]:
    """The last arguments; states that no sequence reads are NaN, those of texts that begin too."""
    ids = torch.randperm(_N_BLOCKS, generator=g)[: len(batch)].int()
    filled = torch.randn(state.shape, generator=g)
    for block, (n_query, context) in zip(ids.tolist(), batch, strict=True):
        if n_query < context:
            state[block] = filled[block]
    starts = torch.tensor([0, *(n for n, _ in batch)]).cumsum(0).int()
    return state, starts, torch.tensor([context for _, context in batch], dtype=torch.int32), ids


def _poisoned(*shape: int) -> Tensor:
    return torch.full((_N_BLOCKS, *shape), torch.nan)


def conv_cases(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for name, batch in BATCHES.items():
        for n_channels, width, biased in ((24, 4, False), (7, 3, True), (5, 1, True), (150, 4, True)):

            def build(g: torch.Generator, batch=batch, c=n_channels, w=width, biased=biased) -> tuple[Any, ...]:
                n = sum(n for n, _ in batch)
                x, weight = torch.randn(n, c, generator=g).to(spec.dtype), torch.randn(c, w, generator=g)
                bias = torch.randn(c, generator=g) if biased else None
                return x, weight, bias, *_where(batch, _poisoned(c, w - 1), g), w != 3

            yield f"{name}, {n_channels} channels, {width} wide", build


def delta_cases(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for name, batch in BATCHES.items():
        for n_heads, n_key_heads, key_dim, dim in ((4, 2, 16, 24), (3, 3, 8, 5), (2, 1, 70, 80)):

            def build(g: torch.Generator, batch=batch, h=n_heads, hk=n_key_heads, kd=key_dim, d=dim) -> tuple[Any, ...]:
                n = sum(n for n, _ in batch)
                q, k = (torch.randn(n, hk, kd, generator=g).to(spec.dtype) for _ in range(2))
                v = torch.randn(n, h, d, generator=g).to(spec.dtype)
                a, b = (torch.randn(n, h, generator=g).to(spec.dtype) for _ in range(2))
                log_rates, bias = torch.randn(h, generator=g), torch.randn(h, generator=g)
                return q, k, v, a, b, log_rates, bias, *_where(batch, _poisoned(h, kd, d), g), h == 4

            yield f"{name}, {n_heads} heads, {n_key_heads} of keys", build


def scan_cases(spec: OpSpec) -> Iterator[tuple[str, Build]]:
    for name, batch in BATCHES.items():
        for n_heads, n_groups, key_dim, dim in ((4, 2, 16, 24), (6, 1, 8, 5), (2, 1, 70, 80)):

            def build(g: torch.Generator, batch=batch, h=n_heads, hk=n_groups, kd=key_dim, d=dim) -> tuple[Any, ...]:
                n = sum(n for n, _ in batch)
                x = torch.randn(n, h, d, generator=g).to(spec.dtype)
                b, c = (torch.randn(n, hk, kd, generator=g).to(spec.dtype) for _ in range(2))
                steps = torch.randn(n, h, generator=g).to(spec.dtype)
                of_heads = (torch.randn(h, generator=g) for _ in range(3))
                return x, steps, b, c, *of_heads, *_where(batch, _poisoned(h, kd, d), g)

            yield f"{name}, {n_heads} heads, {n_groups} groups", build


CASES = {"causal_conv": (conv_cases, 3), "delta_rule": (delta_cases, 7), "state_scan": (scan_cases, 7)}
"""Operator -> (its cases, which of its arguments is the state)."""
