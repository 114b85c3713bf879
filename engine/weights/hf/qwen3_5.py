"""Qwen3.5."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import biases, plain
from engine.weights.hf.recurrent import delta_net

TEXT = {
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "max_position_embeddings": 32_768,
}


def qwen3_5(fields: Fields) -> ModelConfig:
    config = plain(fields, "qwen3_5", n_kv_heads=4, head_dim=256, turned=0.25)
    return replace(config, recurrent=delta_net(fields, config.n_layers), **biases(fields))
