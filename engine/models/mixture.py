"""Decoders that differ from the plain one in that experts stand in the place of MLPs, in all layers or most.

mixtral; qwen2_moe, whose q, k and v have biases; qwen3_moe, whose heads are normed; glm4_moe, in which both is configured and
the first layers have an MLP; gpt_oss, whose heads have sinks; ernie4_5_moe. The configuration says which.
"""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.experts import feed_forward
from engine.models.operators import Operators
from engine.models.parts import Attention, Block, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    def head_norm() -> Norm:
        return Norm(ops, config.head_dim, config.rms_eps)

    def layer(i: int) -> Block:
        biases = {"bias": config.attention_bias, "output_bias": config.attention_output_bias}
        attention = Attention(config, ops, i, **biases, head_norm=head_norm if config.head_norms else None)
        return Block(attention, feed_forward(config, ops, i), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
