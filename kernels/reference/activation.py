"""Activations of the MLP, with a gate and without."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)


def gelu_tanh_mul(gate: Tensor, up: Tensor) -> Tensor:
    return (F.gelu(gate.float(), approximate="tanh") * up.float()).to(gate.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x.float(), approximate="tanh").to(x.dtype)


def relu_squared(x: Tensor) -> Tensor:
    return F.relu(x.float()).square().to(x.dtype)
