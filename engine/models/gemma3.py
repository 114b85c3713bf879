"""Gemma 1 to 3 (text): norms around attention and MLP on both sides, norm weights stored as their distance from 1.

Also an embedding scaled by the root of its size, GELU, and layers with a window, in Gemma 3 with a rotary base of their own;
those come from the configuration. Gemma 3 has an RMS norm on each head of q and k, Gemma 2 soft caps on scores and logits,
Gemma 1 norms before attention and MLP only.
"""

from __future__ import annotations

from engine.models.blocks import SandwichBlock
from engine.models.decoder import Decoder
from engine.models.operators import Operators
from engine.models.parts import MLP, Attention, Block, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps, offset=1.0)

    def head_norm() -> Norm:
        return Norm(ops, config.head_dim, config.rms_eps, offset=1.0)

    block = Block if config.family == "gemma" else SandwichBlock

    def layer(i: int) -> Block | SandwichBlock:
        attention = Attention(
            config,
            ops,
            i,
            bias=config.attention_bias,
            output_bias=config.attention_output_bias,
            head_norm=head_norm if config.family == "gemma3" else None,
        )
        return block(attention, MLP(config, ops), norm)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
