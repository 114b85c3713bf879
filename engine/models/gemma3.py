"""Gemma 3 (text): norms around attention and MLP on both sides, norm weights stored as their distance from 1.

Also an RMS norm on each head of q and k, an embedding scaled by the root of its size, GELU, and five layers with a window
and a rotary base of their own to each full one; those come from the configuration.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.operators import Operators
from engine.models.parts import MLP, Angles, Attention, Caches, Norm, Parameters
from engine.types import StepInputs
from engine.weights.config import ModelConfig


class SandwichBlock:
    """A decoder layer whose attention and MLP have a norm before and one after, which comes before the residual sum."""

    def __init__(self, attention: Attention, mlp: MLP, norm: Callable[[], Norm]) -> None:
        self.attention = attention
        self.mlp = mlp
        self.input_norm = norm()
        self.attention_norm = norm()
        self.mlp_norm = norm()
        self.output_norm = norm()

    def __call__(
        self, x: Tensor, residual: Tensor | None, angles: Angles, inputs: StepInputs, caches: Caches
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.input_norm.add(x, residual)
        x = self.attention_norm(self.attention(x, angles, inputs, caches))
        x, residual = self.mlp_norm.add(x, residual)
        return self.output_norm(self.mlp(x)), residual

    def parameters(self, name: str) -> Parameters:
        yield from self.input_norm.parameters(f"{name}.input_layernorm")
        yield from self.attention.parameters(f"{name}.self_attn")
        yield from self.attention_norm.parameters(f"{name}.post_attention_layernorm")
        yield from self.mlp_norm.parameters(f"{name}.pre_feedforward_layernorm")
        yield from self.mlp.parameters(f"{name}.mlp")
        yield from self.output_norm.parameters(f"{name}.post_feedforward_layernorm")


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps, offset=1.0)

    def head_norm() -> Norm:
        return Norm(ops, config.head_dim, config.rms_eps, offset=1.0)

    def layer(i: int) -> SandwichBlock:
        attention = Attention(
            config, ops, i, bias=config.attention_bias, output_bias=config.attention_output_bias, head_norm=head_norm
        )
        return SandwichBlock(attention, MLP(config, ops), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
