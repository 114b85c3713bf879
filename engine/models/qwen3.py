"""Qwen3: llama with an RMS norm on each head of q and k before they are turned; biases only where configured."""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.operators import Operators
from engine.models.parts import MLP, Attention, Block, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    def head_norm() -> Norm:
        return Norm(ops, config.head_dim, config.rms_eps)

    def layer(i: int) -> Block:
        attention = Attention(
            config, ops, i, bias=config.attention_bias, output_bias=config.attention_output_bias, head_norm=head_norm
        )
        return Block(attention, MLP(config, ops), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
