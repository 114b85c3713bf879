"""Qwen3-Next and Qwen3.5, with an MLP or experts: three layers of gated delta-net to each of attention, whose heads have a gate;
norm weights as distance from 1.
"""

from __future__ import annotations

from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.experts import feed_forward
from engine.models.operators import Operators
from engine.models.parts import Angles, Attention, Block, Caches, Norm
from engine.models.recurrent import DeltaNet
from engine.types import StepInputs
from engine.weights.config import ModelConfig


class GatedAttention(Attention):
    """Attention whose q matrix has, behind the query of each head, a gate for what the head returns."""

    q_parts = 2

    def __call__(self, x: Tensor, angles: Angles, inputs: StepInputs, caches: Caches) -> Tensor:
        q, k, v = self.project(x)
        q, gate = q.unflatten(1, (-1, 2)).unbind(2)
        return self.o(self.attend(q.contiguous(), k, v, angles, inputs, caches).flatten(1) * gate.flatten(1).sigmoid())


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
