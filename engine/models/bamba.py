"""Bamba: Mamba-2 layers with a few of attention among them; half of each head is turned."""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.operators import Operators
from engine.models.parts import MLP, Attention, Block, Norm
from engine.models.recurrent import Mamba2
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    def layer(i: int) -> Block:
        recurrent = config.recurrent
        if recurrent and i in recurrent.layers:
            mixer, name = Mamba2(config, ops, bias=recurrent.bias, conv_bias=recurrent.conv_bias), "mamba"
        else:
            mixer = Attention(config, ops, i, bias=config.attention_bias, output_bias=config.attention_output_bias)
            name = "self_attn"
        names = {"mixer_name": name, "mlp_norm_name": "pre_ff_layernorm", "mlp_name": "feed_forward"}
        return Block(mixer, MLP(config, ops, bias=config.mlp_bias), norm, **names)

    layers = [layer(i) for i in range(config.n_layers)]
    return Decoder(config, ops, max_model_len, layers, norm(), norm_name="model.final_layernorm")
