"""Decoder layers whose norms are elsewhere than in parts.Block, which has one before attention and one before the MLP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from engine.models.operators import Operators
from engine.models.parts import Angles, Attention, Caches, Norm, Parameters
from engine.types import StepInputs

MLP = Any
"""A part from [n, h] to [n, h]."""


class SandwichBlock:
    """Attention and MLP have a norm before and one after, which comes before the residual sum."""

    NAMES = "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
    """Of the norms after attention, before the MLP and after it."""

    def __init__(self, attention: Attention, mlp: MLP, norm: Callable[[], Norm], *, names: tuple[str, str, str] = NAMES) -> None:
        self.attention = attention
        self.mlp = mlp
        self.input_norm = norm()
        self.attention_norm = norm()
        self.mlp_norm = norm()
        self.output_norm = norm()
        self._names = names

    def __call__(
        self, x: Tensor, residual: Tensor | None, angles: Angles, inputs: StepInputs, caches: Caches
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.input_norm.add(x, residual)
        x = self.attention_norm(self.attention(x, angles, inputs, caches))
        x, residual = self.mlp_norm.add(x, residual)
        return self.output_norm(self.mlp(x)), residual

    def parameters(self, name: str) -> Parameters:
        attention_norm, mlp_norm, output_norm = self._names
        yield from self.input_norm.parameters(f"{name}.input_layernorm")
        yield from self.attention.parameters(f"{name}.self_attn")
        yield from self.attention_norm.parameters(f"{name}.{attention_norm}")
        yield from self.mlp_norm.parameters(f"{name}.{mlp_norm}")
        yield from self.mlp.parameters(f"{name}.mlp")
        yield from self.output_norm.parameters(f"{name}.{output_norm}")


class PostNormBlock:
    """Attention and MLP take the residual stream as it is; their norms come after them, before the residual sum."""

    def __init__(self, ops: Operators, attention: Attention, mlp: MLP, norm: Callable[[], Norm]) -> None:
        self.attention = attention
        self.mlp = mlp
        self.attention_norm = norm()
        self.output_norm = norm()
        self._add = ops.get("add")

    def __call__(
        self, x: Tensor, residual: Tensor | None, angles: Angles, inputs: StepInputs, caches: Caches
    ) -> tuple[Tensor, Tensor]:
        residual = x if residual is None else self._add(x, residual)
        residual = self._add(self.attention_norm(self.attention(residual, angles, inputs, caches)), residual)
        return self.output_norm(self.mlp(residual)), residual

    def parameters(self, name: str) -> Parameters:
        yield from self.attention.parameters(f"{name}.self_attn")
        yield from self.attention_norm.parameters(f"{name}.post_attention_layernorm")
        yield from self.mlp.parameters(f"{name}.mlp")
        yield from self.output_norm.parameters(f"{name}.post_feedforward_layernorm")


class ParallelBlock:
    """Attention and MLP take the same normed input."""

    def __init__(self, ops: Operators, attention: Attention, mlp: MLP, norm: Callable[[], Norm]) -> None:
        self.attention = attention
        self.mlp = mlp
        self.input_norm = norm()
        self._add = ops.get("add")

    def __call__(
        self, x: Tensor, residual: Tensor | None, angles: Angles, inputs: StepInputs, caches: Caches
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.input_norm.add(x, residual)
        return self._add(self.attention(x, angles, inputs, caches), self.mlp(x)), residual

    def parameters(self, name: str) -> Parameters:
        yield from self.input_norm.parameters(f"{name}.input_layernorm")
        yield from self.attention.parameters(f"{name}.self_attn")
        yield from self.mlp.parameters(f"{name}.mlp")
