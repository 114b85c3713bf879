"""Quantised checkpoints of the tiny model, and what their own tools say of them."""

from __future__ import annotations

from functools import cache

import torch
from safetensors.torch import load_file
from torch import Tensor

from kernels.ops import CODES, Weight
from tests import models
from tests.fixtures.make_quantized import TOOLS

EVERY = [f"{tool}-{name}" for tool, made in TOOLS.items() for name in made.tiny]


@cache
def expected(name: str) -> dict[str, dict[str, Tensor]]:
    """Module -> what its tool makes of it: q, zeros, values, dense, where it tells them."""
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in load_file(models.quantized(name) / "expected.safetensors").items():
        module, _, part = key.rpartition(".")
        parts.setdefault(module, {})[part] = tensor
    return parts


@cache
def base() -> dict[str, Tensor]:
    """The tensors of the model that was quantised."""
    return load_file(models.quantized("tiny-base", of=".") / "model.safetensors")


def numbers(weight: Weight) -> Tensor:
    """The number in the data of each value, float32 [out, in], by the words of kernels/ops.py, columns where they belong."""
    if weight.data.dtype == torch.uint8:
        numbers = torch.empty(weight.shape, dtype=torch.uint8)
        numbers[:, 0::2], numbers[:, 1::2] = weight.data % 16, weight.data // 16
    else:
        numbers = weight.data
    numbers = torch.tensor(CODES[weight.qtype])[numbers.long()] if weight.qtype in CODES else numbers.float()
    return _placed(weight, numbers)


def points(weight: Weight) -> Tensor:
    """The zero point of each value, float32 [out, in]."""
    zeros = weight.zeros
    if zeros is None:
        return torch.full(weight.shape, 8.0 if weight.qtype == "INT4" else 0.0)
    return _placed(weight, zeros.float().repeat_interleave(weight.group, 1))


def _placed(weight: Weight, values: Tensor) -> Tensor:
    if weight.order is None:
        return values
    placed = torch.empty_like(values)
    placed[:, weight.order.long()] = values
    return placed
