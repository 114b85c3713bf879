"""DeepSeek-V2 and V3, and models made like them: latent attention; experts come with the configuration."""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.latent import LatentAttention
from engine.models.operators import Operators
from engine.models.parts import MLP, Block, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    def layer(i: int) -> Block:
        return Block(LatentAttention(config, ops, i), MLP(config, ops, bias=config.mlp_bias), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
