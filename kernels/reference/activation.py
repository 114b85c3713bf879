"""Gated activations of the MLP."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)


def gelu_tanh_mul(gate: Tensor, up: Tensor) -> Tensor:
    return (F.gelu(gate.float(), approximate="tanh") * up.float()).to(gate.dtype)
