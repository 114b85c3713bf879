"""Llama 4 (text): three layers of four see a chunk of the text and are turned, the others see all of it and are not.

Heads of turned layers have norms without weights; they come after turning in the original, which is the same before it, for a
turned head is as long as it was. Queries of the others grow with the position. Layers have an MLP, or experts and an MLP beside
them. MobileLLM-R1 is one without experts, of which all layers are turned and see all.
"""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.experts import feed_forward
from engine.models.growth import query_factors
from engine.models.norms import PlainNorm
from engine.models.operators import Operators
from engine.models.parts import Attention, Block, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    factors = query_factors(config, ops, max_model_len)

    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    def head_norm() -> Norm:
        return PlainNorm(ops, config.head_dim, config.rms_eps)

    def layer(i: int) -> Block:
        biases = {"bias": config.attention_bias, "output_bias": config.attention_output_bias}
        if config.ropes[i] is None:
            attention = Attention(config, ops, i, **biases, query_factors=factors)
        else:
            attention = Attention(config, ops, i, **biases, head_norm=head_norm if config.head_norms else None)
        return Block(attention, feed_forward(config, ops, i), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
