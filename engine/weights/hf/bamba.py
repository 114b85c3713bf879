"""Bamba."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import biases, plain
from engine.weights.hf.recurrent import mamba2


def bamba(fields: Fields) -> ModelConfig:
    config = plain(fields, "bamba", n_kv_heads=8, rms_eps=1e-5, turned=0.5)
    attention = fields.get("attn_layer_indices", [])
    if not isinstance(attention, list) or not all(isinstance(i, int) and 0 <= i < config.n_layers for i in attention):
        raise fields.bad("attn_layer_indices", f"is not a list of layers below {config.n_layers}")
    recurrent = mamba2(fields, attention, config.n_layers, config.hidden_size)
    return replace(config, mlp_bias=fields.flag("mlp_bias", False), recurrent=recurrent, **biases(fields))
