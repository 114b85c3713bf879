"""Phi-3 and Phi-4: llama whose q, k and v are one matrix, and gate and up another."""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.mlp import JoinedMLP
from engine.models.operators import Operators
from engine.models.parts import Attention, Block, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    layers = [Block(Attention(config, ops, i, joined=True), JoinedMLP(config, ops), norm) for i in range(config.n_layers)]
    return Decoder(config, ops, max_model_len, layers, norm())
