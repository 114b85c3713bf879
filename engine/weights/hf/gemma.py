"""Gemma 1 to 3."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import ACTIVATIONS, biases, plain
from engine.weights.hf.rope import rope_pair
from engine.weights.hf.windows import window_size, windows_by_type

GEMMA3_TEXT = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "max_position_embeddings": 131_072,
}


def gemma(fields: Fields) -> ModelConfig:
    """What the first files call "gelu" is its tanh form."""
    activations = {**ACTIVATIONS, "gelu": "gelu_tanh"}
    activation = ("hidden_act", "gelu_pytorch_tanh")
    config = plain(fields, "gemma", n_kv_heads=16, head_dim=256, tie=True, activation=activation, activations=activations)
    return replace(config, embedding_scale=config.hidden_size**0.5, **biases(fields))


def gemma2(fields: Fields) -> ModelConfig:
    config = _gemma(fields, fields, "gemma2")
    return replace(
        config,
        windows=windows_by_type(fields, window_size(fields), [i % 2 == 0 for i in range(config.n_layers)]),
        attn_soft_cap=_soft_cap(fields, "attn_logit_softcapping", 50.0),
        logit_soft_cap=_soft_cap(fields, "final_logit_softcapping", 30.0),
    )


def gemma3(fields: Fields) -> ModelConfig:
    # Of the layers' ropes each has a section of its own, so that what plain() reads is that of none.
    unturned = {name: value for name, value in fields.values.items() if name not in ("rope_parameters", "rope_scaling")}
    config = _gemma(fields, Fields(unturned, fields.source), "gemma3")
    local_theta = fields.number("rope_local_base_freq", 10_000.0)
    rope, local_rope = rope_pair(fields, 1_000_000.0, local_theta, config.head_dim, config.max_position)
    period = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
    slides = [(i + 1) % period > 0 for i in range(config.n_layers)]
    windows = windows_by_type(fields, window_size(fields), slides)
    return replace(
        config,
        ropes=tuple(local_rope if window else rope for window in windows),
        windows=windows,
        attn_soft_cap=_soft_cap(fields, "attn_logit_softcapping", 0.0),
        logit_soft_cap=_soft_cap(fields, "final_logit_softcapping", 0.0),
    )


def _gemma(fields: Fields, turned: Fields, family: str) -> ModelConfig:
    """turned: `fields` as plain() shall see them."""
    if fields.get("use_bidirectional_attention", False):
        raise fields.bad("use_bidirectional_attention", "is true, but only causal models generate text")
    activation = ("hidden_activation", "gelu_pytorch_tanh")
    config = plain(turned, family, n_kv_heads=4, head_dim=256, tie=True, activation=activation)
    return replace(
        config,
        attention_scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        embedding_scale=config.hidden_size**0.5,
        **biases(fields),
    )


def _soft_cap(fields: Fields, name: str, default: float) -> float:
    """An explicit null says that there is none; absence means the default of the configuration class."""
    absent = fields.values.get(name, default) is None
    return 0.0 if absent else fields.number(name, default)
