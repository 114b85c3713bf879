"""Command R, Command A and Aya: attention beside the MLP, behind one layer norm without bias, and a factor of the logits."""

from __future__ import annotations

from engine.models.blocks import ParallelBlock
from engine.models.decoder import Decoder
from engine.models.norms import HeadsNorm, LayerNorm
from engine.models.operators import Operators
from engine.models.parts import MLP, Attention
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> LayerNorm:
        return LayerNorm(ops, config.hidden_size, config.rms_eps, bias=False)

    def layer(i: int) -> ParallelBlock:
        attention = Attention(config, ops, i, bias=config.attention_bias, output_bias=config.attention_output_bias)
        if config.head_norms:
            heads = (config.n_heads, config.n_kv_heads)
            attention.q_norm, attention.k_norm = (HeadsNorm(ops, n, config.head_dim, config.rms_eps) for n in heads)
        return ParallelBlock(ops, attention, MLP(config, ops), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
