"""Olmo 2 and 3: norms after attention and MLP only, and one over all heads of q, and of k; Olmo 3 has windows."""

from __future__ import annotations

from engine.models.blocks import PostNormBlock
from engine.models.decoder import Decoder
from engine.models.operators import Operators
from engine.models.parts import MLP, Attention, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm(size: int = config.hidden_size) -> Norm:
        return Norm(ops, size, config.rms_eps)

    def layer(i: int) -> PostNormBlock:
        attention = Attention(config, ops, i, bias=config.attention_bias, output_bias=config.attention_output_bias, row_norm=norm)
        return PostNormBlock(ops, attention, MLP(config, ops), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
