"""DeepSeek-V2 and V3, and models made like them: latent attention, and experts in all layers but the first ones."""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.experts import feed_forward
from engine.models.latent import LatentAttention
from engine.models.operators import Operators
from engine.models.parts import Block, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    def layer(i: int) -> Block:
        return Block(LatentAttention(config, ops, i), feed_forward(config, ops, i), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
