"""Arcee's AFM: llama with an MLP of squares, without a gate."""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.mlp import UngatedMLP
from engine.models.operators import Operators
from engine.models.parts import Attention, Block, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    def layer(i: int) -> Block:
        attention = Attention(config, ops, i, bias=config.attention_bias, output_bias=config.attention_output_bias)
        return Block(attention, UngatedMLP(config, ops, bias=config.mlp_bias, names=("up_proj", "down_proj")), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
