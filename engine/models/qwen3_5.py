"""Qwen3-Next and Qwen3.5, with an MLP or experts: three layers of gated delta-net to each of attention, whose heads have a gate;
norm weights as distance from 1.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.experts import feed_forward
from engine.models.operators import Operators
from engine.models.parts import Angles, Attention, Block, Caches, Linear, Linears, Norm, Parameters
from engine.models.recurrent import DeltaNet
from engine.types import StepInputs
from engine.weights.config import ModelConfig


class GatedAttention(Attention):
    """Attention with a gate for what each head returns."""

    def __init__(self, config: ModelConfig, ops: Operators, layer: int, *, bias: bool, **settings: Any) -> None:
        super().__init__(config, ops, layer, bias=bias, **settings)
        self.q_gate = Linear(ops, config.hidden_size, config.n_heads * config.head_dim, bias=bias)
        self._all = Linears(ops, self.q, self.k, self.v, self.q_gate)
        self._gate = ops.get("sigmoid_mul")

    def __call__(self, x: Tensor, angles: Angles, inputs: StepInputs, caches: Caches) -> Tensor:
        *qkv, gate = self._all(x)
        q, k, v = (rows.unflatten(-1, (-1, self._shape.key_dim)) for rows in qkv)
        return self.o(self._gate(self.attend(q, k, v, angles, inputs, caches).flatten(1), gate))

    def parameters(self, name: str) -> Parameters:
        yield from super().parameters(name)
        yield from self.q_gate.parameters(f"{name}.q_gate")


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps, offset=1.0)

    def head_norm() -> Norm:
        return Norm(ops, config.head_dim, config.rms_eps, offset=1.0)

    def layer(i: int) -> Block:
        if config.recurrent and i in config.recurrent.layers:
            return Block(DeltaNet(config, ops), feed_forward(config, ops, i), norm, mixer_name="linear_attn")
        biases = {"bias": config.attention_bias, "output_bias": config.attention_output_bias}
        return Block(GatedAttention(config, ops, i, **biases, head_norm=head_norm), feed_forward(config, ops, i), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
