"""Command R, Command A and Aya."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import biases, plain
from engine.weights.hf.windows import window_size, windows_by_type


def cohere(fields: Fields) -> ModelConfig:
    config = _plain(fields, "cohere", theta=500_000.0)
    return replace(config, head_norms=fields.flag("use_qk_norm", False))


def cohere2(fields: Fields) -> ModelConfig:
    """Every fourth layer sees all, and is not turned."""
    config = _plain(fields, "cohere2", theta=10_000.0)
    period = fields.integer("sliding_window_pattern", 4)
    windows = windows_by_type(fields, window_size(fields), [(i + 1) % period > 0 for i in range(config.n_layers)])
    return replace(
        config, windows=windows, ropes=tuple(rope if window else None for rope, window in zip(config.ropes, windows, strict=True))
    )


def _plain(fields: Fields, family: str, theta: float) -> ModelConfig:
    config = plain(fields, family, rms_eps=1e-5, eps_name="layer_norm_eps", tie=True, theta=theta)
    return replace(config, logit_scale=fields.number("logit_scale", 0.0625), **biases(fields))
