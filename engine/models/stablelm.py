"""Stable LM 2: llama with layer norms that have biases; a quarter of each head is turned."""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.norms import LayerNorm
from engine.models.operators import Operators
from engine.models.parts import MLP, Attention, Block
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> LayerNorm:
        return LayerNorm(ops, config.hidden_size, config.rms_eps)

    layers = [
        Block(Attention(config, ops, i, bias=config.attention_bias), MLP(config, ops), norm) for i in range(config.n_layers)
    ]
    return Decoder(config, ops, max_model_len, layers, norm())
