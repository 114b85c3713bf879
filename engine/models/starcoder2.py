"""StarCoder2: layer norms with biases, and an MLP without a gate."""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.mlp import UngatedMLP
from engine.models.norms import LayerNorm
from engine.models.operators import Operators
from engine.models.parts import Attention, Block
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> LayerNorm:
        return LayerNorm(ops, config.hidden_size, config.rms_eps)

    def layer(i: int) -> Block:
        attention = Attention(config, ops, i, bias=config.attention_bias, output_bias=config.attention_output_bias)
        return Block(attention, UngatedMLP(config, ops, bias=config.mlp_bias, names=("c_fc", "c_proj")), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
