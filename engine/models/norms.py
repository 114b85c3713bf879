"""Norms of a few families: layer norms in the place of RMS norms, and RMS norms without weights."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.operators import Operators
from engine.models.parts import Norm, Parameters, Vector
from kernels.ops import Weight
from kernels.reference import dequant


class LayerNorm:
    """With a bias or without; `offset` 1 is for weights that are stored as their distance from 1."""

    def __init__(self, ops: Operators, size: int, eps: float, *, bias: bool = True, offset: float = 0.0) -> None:
        self.weight = Vector(size, offset=offset)
        self.bias = Vector(size) if bias else None
        self._eps = eps
        self._norm = ops.get("layer_norm")
        self._add = ops.get("add")

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] -> the same shape."""
        return self._norm(x, self.weight.value, self.bias and self.bias.value, self._eps)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual), where no residual yet means that x begins it."""
        total = x if residual is None else self._add(x, residual)
        return self(total), total

    def parameters(self, name: str) -> Parameters:
        yield f"{name}.weight", self.weight
        if self.bias:
            yield f"{name}.bias", self.bias


class PlainNorm(Norm):
    """An RMS norm without weights."""

    def __init__(self, ops: Operators, size: int, eps: float) -> None:
        super().__init__(ops, size, eps)
        self.fill(torch.ones(size, device=ops.device))

    def parameters(self, name: str) -> Parameters:
        yield from ()


class HeadsNorm:
    """A layer norm without bias that has weights of its own for each head, a parameter of two dims."""

    def __init__(self, ops: Operators, n_heads: int, head_dim: int, eps: float) -> None:
        self.shape = n_heads, head_dim
        self.value: Tensor | None = None
        self._eps = eps
        self._norm = ops.get("layer_norm")

    def fill(self, value: Weight) -> bool:
        self.value = dequant.dense(value).float()
        return self.value.data_ptr() == value.data.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        """[n, n_heads, head_dim] -> the same shape."""
        return self._norm(x, self.value, None, self._eps)

    def parameters(self, name: str) -> Parameters:
        yield f"{name}.weight", self
