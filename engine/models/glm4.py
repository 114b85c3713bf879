"""GLM-4-9B: gate and up are one matrix, half of each head is turned; from 0414 on with norms on both sides."""

from __future__ import annotations

from engine.models.blocks import SandwichBlock
from engine.models.decoder import Decoder
from engine.models.mlp import JoinedMLP
from engine.models.operators import Operators
from engine.models.parts import Attention, Block, Norm
from engine.weights.config import ModelConfig

_NAMES = "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    def layer(i: int) -> Block | SandwichBlock:
        attention, mlp = Attention(config, ops, i, bias=config.attention_bias), JoinedMLP(config, ops)
        return Block(attention, mlp, norm) if config.family == "glm" else SandwichBlock(attention, mlp, norm, names=_NAMES)

    return Decoder(config, ops, max_model_len, [layer(i) for i in range(config.n_layers)], norm())
