"""Qwen2 and Qwen2.5: llama with biases on q, k and v, whatever the configuration says, and none on the output."""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.operators import Operators
from engine.models.parts import MLP, Attention, Block, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    layers = [Block(Attention(config, ops, i, bias=True), MLP(config, ops), norm) for i in range(config.n_layers)]
    return Decoder(config, ops, max_model_len, layers, norm())
