"""Llama and the families that differ from it in a few fields: mistral, qwen2, qwen3."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import biases, plain
from engine.weights.hf.windows import window_size, windows_by_type


def llama(fields: Fields) -> ModelConfig:
    return replace(plain(fields, "llama"), mlp_bias=fields.flag("mlp_bias", False), **biases(fields))


def mistral(fields: Fields) -> ModelConfig:
    config = plain(fields, "mistral", n_kv_heads=8)
    return replace(config, windows=(window_size(fields),) * config.n_layers)


def qwen2(fields: Fields) -> ModelConfig:
    """q, k and v have biases whatever the configuration says, o has none."""
    config = plain(fields, "qwen2")
    return replace(config, attention_bias=True, windows=_qwen_windows(fields, config.n_layers))


def qwen3(fields: Fields) -> ModelConfig:
    config = plain(fields, "qwen3", head_dim=128)
    return replace(config, windows=_qwen_windows(fields, config.n_layers), **biases(fields))


def _qwen_windows(fields: Fields, n_layers: int) -> tuple[int, ...]:
    window = window_size(fields) if fields.flag("use_sliding_window", False) else 0
    first = fields.integer("max_window_layers", 28, low=0) if window else n_layers
    return windows_by_type(fields, window, [i >= first for i in range(n_layers)]) if window else (0,) * n_layers
