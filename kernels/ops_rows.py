"""A part of the contract in ops.py: operators on rows that few families have. Letters and rules are those of that file."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class LayerNorm(Protocol):
    """x [..., h], weight [h], bias [h] or None -> [..., h]: (x - mean) / sqrt(variance + eps) * weight + bias, over the last dim.

    x may have heads, [n, H, h]; then the weight may too, [H, h], one for each head.
    """

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor: ...


class Add(Protocol):
    """x, y [n, h] -> x + y."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor: ...


class ScaleRows(Protocol):
    """x [n, ...], factors float32 [positions in all], positions int64 [n] -> each row of x times the factor of its position."""

    def __call__(self, x: Tensor, factors: Tensor, positions: Tensor) -> Tensor: ...


class Activation(Protocol):
    """x [n, f] -> [n, f]: gelu_tanh: GELU's tanh form; relu_squared: max(x, 0)^2."""

    def __call__(self, x: Tensor) -> Tensor: ...
