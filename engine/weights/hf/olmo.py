"""Olmo 2 and 3, and EXAONE 4, whose layers have the same norms."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import biases, plain
from engine.weights.hf.rope import rope_pair, stretched
from engine.weights.hf.windows import window_size, windows_by_type


def olmo2(fields: Fields) -> ModelConfig:
    return replace(plain(fields, "olmo2", rms_eps=1e-5), **biases(fields))


def olmo3(fields: Fields) -> ModelConfig:
    """Every fourth layer sees all, and its rope alone is scaled."""
    unturned = {name: value for name, value in fields.values.items() if name not in ("rope_parameters", "rope_scaling")}
    config = plain(Fields(unturned, fields.source), "olmo2", rms_eps=1e-5)
    theta = fields.number("rope_theta", 500_000.0)
    rope, local_rope = rope_pair(fields, theta, theta, config.head_dim, config.max_position)
    windows = windows_by_type(fields, window_size(fields), [(i + 1) % 4 > 0 for i in range(config.n_layers)])
    return replace(
        config,
        ropes=tuple(local_rope if window else rope for window in windows),
        windows=windows,
        max_position=stretched(rope, config.max_position),
        **biases(fields),
    )


def exaone4(fields: Fields) -> ModelConfig:
    """Of a model with windows, layers without are not turned."""
    config = plain(fields, "exaone4", rms_eps=1e-5)
    window = window_size(fields)
    if not window:
        return config
    period = fields.get("sliding_window_pattern", 4)
    if isinstance(period, str):
        if not period:
            raise fields.bad("sliding_window_pattern", "is empty, expected a letter for each layer of a period")
        slides = [period[i % len(period)] == "L" for i in range(config.n_layers)]
    else:
        period = fields.integer("sliding_window_pattern", 4)
        slides = [(i + 1) % period > 0 for i in range(config.n_layers)]
    windows = windows_by_type(fields, window, slides)
    ropes = tuple(rope if slides else None for rope, slides in zip(config.ropes, windows, strict=True))
    return replace(config, windows=windows, ropes=ropes)
