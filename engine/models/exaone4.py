"""EXAONE 4: norms after attention and MLP only, and one on each head of q and k; layers with a window are turned."""

from __future__ import annotations

from engine.models.blocks import PostNormBlock
from engine.models.decoder import Decoder
from engine.models.operators import Operators
from engine.models.parts import MLP, Attention, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    def head_norm() -> Norm:
        return Norm(ops, config.head_dim, config.rms_eps)

    def layer(i: int) -> PostNormBlock:
        return PostNormBlock(ops, Attention(config, ops, i, head_norm=head_norm), MLP(config, ops), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
