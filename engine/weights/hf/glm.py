"""GLM-4-9B."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import plain


def glm(fields: Fields) -> ModelConfig:
    return _plain(fields, "glm")


def glm4(fields: Fields) -> ModelConfig:
    return _plain(fields, "glm4")


def _plain(fields: Fields, family: str) -> ModelConfig:
    config = plain(fields, family, n_kv_heads=2, head_dim=128, rms_eps=1.5625e-7, turned=0.5)
    return replace(config, attention_bias=fields.flag("attention_bias", True))
