"""Inputs of the sampling operators for conformance.py: ties, NaN, infinities, padded rows, extremes of every parameter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

Build = Callable[[Generator], tuple[Any, ...]]
"""Arguments of an operator from a generator, the same each time."""

TEMPERATURES = (1e-5, 0.3, 0.8, 1.0, 2.0, 1e30)
CUTS = (
    (-math.inf, 0, 1.0),
    (-math.inf, 1, 1.0),
    (-math.inf, 40, 1.0),
    (-math.inf, 700, 1.0),
    (-math.inf, 10**6, 0.9),
    (-math.inf, 50, 0.8),
    (-math.inf, 0, 0.95),
    (-math.inf, 0, 0.3),
    (-math.inf, 0, 1e-12),
    (-math.inf, 0, 0.0),
    (-math.inf, 0, 1 - 1e-12),
    (math.log2(0.05), 0, 1.0),
    (math.log2(0.02), 300, 0.9),
    (0.0, 0, 1.0),
    (0.5, 0, 0.9),
)
"""floor, top_k, top_p"""


def logits(name: str, n_rows: int, n: int, g: Generator) -> Tensor:
    """float32 [n_rows, n], each row of its own values."""
    x = torch.randn(n_rows, n, generator=g) * 3
    if name == "flat":
        x /= 10
    elif name == "rounded":
        x.round_()
    elif name == "all equal":
        x.fill_(-1.5)
    elif name == "two values":
        x = torch.where(x > 0, 2.0, 1.0)
    elif name == "mostly -inf":
        x[x < 4] = -math.inf
        x[:, 0] = 1.0
    elif name == "rising":
        x = x.sort(dim=-1).values
    elif name == "padded":
        x = torch.cat((x, torch.full((n_rows, 7), math.nan)), dim=-1)[:, :n]
    elif name == "one for all":
        x = x[:1].expand(n_rows, n)
    elif name == "broken":
        x[0::5, n // 2] = math.nan
        x[1::5, n - 1] = math.inf
        x[2::5] = -math.inf
        x[3::5, 0] = -math.inf
    elif name != "peaked":
        raise ValueError(name)
    return x


SHAPES = (
    *(("peaked", 7, n) for n in (1, 2, 17, 127, 128, 129, 1003)),
    *(
        (name, 5, 1003)
        for name in ("flat", "rounded", "all equal", "two values", "mostly -inf", "padded", "one for all", "broken")
    ),
    ("rising", 2, 20_011),
    ("peaked", 1, 20_011),
    ("peaked", 0, 20),
)


def sample_cases() -> Iterator[tuple[str, Build]]:
    for name, n_rows, n in SHAPES:
        yield f"greedy, {name}, {n_rows} x {n}", lambda g, name=name, n_rows=n_rows, n=n: (logits(name, n_rows, n, g),)

        def build(g: Generator, name: str = name, n_rows: int = n_rows, n: int = n) -> tuple[Any, ...]:
            """Each kind of draw on some row, with the first, the last and other numbers; every fifth row is greedy."""
            hows = itertools.islice(itertools.cycle(itertools.product(CUTS, TEMPERATURES)), 90 if n < 10_000 else 30)
            draws = torch.tensor([(temperature if i % 5 else 0.0, *cut) for i, (cut, temperature) in enumerate(hows)])
            draws = draws.double()[: 90 if n_rows else 0]
            numbers = torch.rand(len(draws), generator=g, dtype=torch.float64)
            numbers[1::7], numbers[2::7] = 0.0, 1 - 2.0**-53
            rows = torch.arange(len(draws)) % max(n_rows, 1)
            return logits(name, n_rows, n, g)[rows], draws, numbers

        yield f"drawn, {name}, {n_rows} x {n}", build
    yield "drawn, padded in place", _padded
    yield "drawn, two heavy ones among equals", _two_heavy


def _padded(g: Generator) -> tuple[Any, ...]:
    draws = torch.tensor([[0.8, -math.inf, 0, 0.95], [1.0, -math.inf, 20, 1.0], [0, 0, 0, 1]], dtype=torch.float64)
    return logits("padded", 3, 1003, g), draws, torch.rand(3, generator=g, dtype=torch.float64)


def _two_heavy(g: Generator) -> tuple[Any, ...]:
    """Whoever looks at a few evenly spaced values of the likelier ones sees those that are equal."""
    top_p = torch.linspace(0.02, 0.99, 60, dtype=torch.float64)
    draws = torch.stack((torch.ones(60), torch.full((60,), -math.inf), torch.zeros(60), top_p), dim=-1).double()
    x = torch.full((60, 4096), -60.0)
    x[:, :302] = -2.0
    x[:, 2], x[:, 4] = 4.99, 5.0
    return x, draws, torch.rand(60, generator=g, dtype=torch.float64)


def penalize_cases() -> Iterator[tuple[str, Build]]:
    for n, n_seen, n_output in ((7, 0, 0), (7, 7, 3), (1003, 400, 0), (1003, 0, 50), (1003, 400, 300)):
        for repetition, frequency, presence in ((1.3, 0.5, -0.7), (0.8, -0.25, 0.0), (1.0, 0.0, 1.5)):

            def build(
                g: Generator,
                n: int = n,
                n_seen: int = n_seen,
                n_output: int = n_output,
                repetition: float = repetition,
                frequency: float = frequency,
                presence: float = presence,
            ) -> tuple[Any, ...]:
                x = torch.randn(n, generator=g)
                x[::5] = 0.0
                seen = torch.randperm(n, generator=g)
                counts = torch.randint(1, 9, (n_output,), generator=g).double()
                return x, seen[:n_seen], repetition, seen[:n_output], counts, frequency, presence

            yield f"{n_seen} and {n_output} of {n}, {repetition}, {frequency}, {presence}", build


def logprobs_cases() -> Iterator[tuple[str, Build]]:
    for name, n_rows, n in SHAPES:
        for n_top in (0, 1, 20):

            def build(g: Generator, name: str = name, n_rows: int = n_rows, n: int = n, n_top: int = n_top) -> tuple[Any, ...]:
                x = logits(name, n_rows, n, g)
                ids = torch.randint(0, n, (n_rows,), generator=g)
                if name == "mostly -inf":
                    ids.zero_()
                return x, ids, min(n_top, n)

            yield f"{name}, {n_rows} x {n}, top {n_top}", build
    yield "of a token that cannot be", lambda g: (torch.tensor([[0.0, -math.inf, 1.0]]), torch.tensor([1]), 3)


def uniform_cases() -> Iterator[tuple[str, Build]]:
    def build(g: Generator, n: int) -> tuple[Any, ...]:
        seeds = torch.randint(-(2**63), 2**63 - 1, (n,), generator=g)
        choices = torch.randint(0, 2**31, (n,), generator=g)
        positions = torch.randint(0, 2**40, (n,), generator=g)
        return (torch.stack((seeds, choices, positions), dim=-1),)

    for n in (0, 1, 200):
        yield f"{n} keys", lambda g, n=n: build(g, n)
    yield "small keys", lambda g: (torch.cartesian_prod(*[torch.tensor([0, 1, -1])] * 3),)
