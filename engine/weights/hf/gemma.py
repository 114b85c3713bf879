"""Gemma 3."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import biases, plain
from engine.weights.hf.rope import read_rope
from engine.weights.hf.windows import window_size, windows_by_type

GEMMA3_TEXT = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "max_position_embeddings": 131_072,
}


def gemma3(fields: Fields) -> ModelConfig:
    if fields.get("use_bidirectional_attention", False):
        raise fields.bad("use_bidirectional_attention", "is true, but only causal models generate text")
    # Of the layers' ropes each has a section of its own, so that what plain() reads is that of none.
    unturned = {name: value for name, value in fields.values.items() if name not in ("rope_parameters", "rope_scaling")}
    config = plain(
        Fields(unturned, fields.source),
        "gemma3",
        n_kv_heads=4,
        head_dim=256,
        tie=True,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
    )
    nested = fields.section("rope_parameters")
    full = nested.section("full_attention") if nested.get("full_attention", None) else fields.section("rope_scaling")
    local = nested.section("sliding_attention")
    positions = config.head_dim, config.max_position
    rope = read_rope(fields, full, 1_000_000.0, *positions)
    base = local.number("rope_theta", fields.number("rope_local_base_freq", 10_000.0))
    local_rope = read_rope(Fields({**fields.values, "rope_theta": base}, fields.source), local, base, *positions)
    period = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    slides = [(i + 1) % period > 0 for i in range(config.n_layers)]
    windows = windows_by_type(fields, window_size(fields), slides)
    return replace(
        config,
        ropes=tuple(local_rope if window else rope for window in windows),
        windows=windows,
        attention_scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        attn_soft_cap=fields.number("attn_logit_softcapping", 0.0),
        logit_soft_cap=fields.number("final_logit_softcapping", 0.0),
        embedding_scale=config.hidden_size**0.5,
        **biases(fields),
    )
