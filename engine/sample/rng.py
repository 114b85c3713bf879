"""Random numbers that are a function of what they are for, not of what was drawn before.

A stateful generator would make an answer depend on its neighbours in the batch and on preemptions. Here a number depends
on (seed, choice, position) only, in integer arithmetic that is the same on every platform.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from kernels.ops import OpSpec, Uniform
from kernels.registry import resolve


def uniforms(keys: Iterable[tuple[int, int, int]], device: str = "cpu") -> Tensor:
    """float64 [keys] in [0, 1), each for the token at `position` of a request's `choice`-th answer: (seed, choice, position).

    Of a seed the low 64 bits count, so that wide and negative ones are welcome.
    """
    signed = [((seed + (1 << 63)) % (1 << 64) - (1 << 63), choice, position) for seed, choice, position in keys]
    return _operator(device)(torch.tensor(signed, dtype=torch.int64, device=device))


@cache
def _operator(device: str) -> Uniform:
    return resolve("uniform", OpSpec(device)).fn
