"""Granite 4: Mamba-2 or attention, experts or none, and factors of embedding, residuals, scores and logits."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ExpertsConfig, ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.experts import checked
from engine.weights.hf.plain import biases, plain
from engine.weights.hf.recurrent import mamba2
from engine.weights.hf.windows import layer_types
from kernels.ops import Routing

_KINDS = {"mamba": True, "linear_attention": True, "attention": False, "full_attention": False}
"""Types of layers, as releases of transformers have called them -> whether they have a state."""


def granitemoehybrid(fields: Fields) -> ModelConfig:
    config = plain(fields, "granitemoehybrid", theta=10_000.0)
    types = layer_types(fields, ["linear_attention"] * config.n_layers, tuple(_KINDS))
    attention = [i for i, kind in enumerate(types) if not _KINDS[kind]]
    position = fields.get("position_embedding_type", "nope")
    if position not in ("rope", "nope"):
        raise fields.bad("position_embedding_type", f"is {position}", "Supported: rope, or none.")
    shared = fields.integer("shared_intermediate_size", 1024)
    n = fields.integer("num_local_experts", 8, low=0)
    experts = ExpertsConfig(
        n_experts=n,
        width=config.intermediate_size,
        routing=Routing(fields.integer("num_experts_per_tok", 2), "chosen"),
        layers=tuple(range(config.n_layers)) if n else (),
        shared_width=shared,
    )
    return replace(
        config,
        intermediate_size=shared,
        ropes=config.ropes if position == "rope" else (None,) * config.n_layers,
        attention_scale=fields.number("attention_multiplier", 1.0),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1.0),
        recurrent=mamba2(fields, attention, config.n_layers, config.hidden_size),
        experts=checked(experts, fields),
        shared_width=shared,
        **biases(fields),
    )
