"""Phi-3 and Phi-4."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import plain
from engine.weights.hf.rope import rope_section
from engine.weights.hf.windows import window_size


def phi3(fields: Fields) -> ModelConfig:
    """The window before scaling is a field of the model's, and older files call longrope "su" or "yarn"."""
    rope = rope_section(fields)
    kind = rope.text("rope_type", rope.text("type", "default"))
    described = {
        **rope.values,
        "rope_type": "longrope" if kind in ("su", "yarn") else kind,
        "original_max_position_embeddings": fields.integer("original_max_position_embeddings", 4096),
    }
    fields = Fields({**fields.values, "rope_parameters": described}, fields.source)
    config = plain(fields, "phi3", rms_eps=1e-5)
    return replace(config, windows=(window_size(fields, None),) * config.n_layers)
