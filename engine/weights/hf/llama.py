"""Llama and the families that differ from it in a few fields: mistral, qwen2, qwen3, smollm3, granite, seed_oss, ernie4_5."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import biases, plain
from engine.weights.hf.windows import window_size, windows_by_type

QWEN2_VL_TEXT = {
    **{"max_position_embeddings": 32_768, "rms_norm_eps": 1e-5, "max_window_layers": 80},
    **{"num_key_value_heads": 8, "rope_theta": 1_000_000.0},
}
QWEN3_VL_TEXT = {"max_position_embeddings": 128_000, "num_key_value_heads": 32, "rope_theta": 500_000.0}
"""What the text halves have otherwise than qwen2 and qwen3, where their configurations are silent."""


def llama(fields: Fields) -> ModelConfig:
    return replace(plain(fields, "llama"), mlp_bias=fields.flag("mlp_bias", False), **biases(fields))


def mistral(fields: Fields) -> ModelConfig:
    config = plain(fields, "mistral", n_kv_heads=8)
    return replace(config, windows=(window_size(fields),) * config.n_layers)


def ministral(fields: Fields) -> ModelConfig:
    config, window = plain(fields, "mistral", n_kv_heads=8), window_size(fields)
    return replace(config, windows=windows_by_type(fields, window, [window > 0] * config.n_layers))


_MINISTRAL3_ROPE = {
    **{"type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "original_max_position_embeddings": 16_384},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1},
}


def ministral3(fields: Fields) -> ModelConfig:
    if not fields.get("rope_parameters", None):
        fields = Fields({**fields.values, "rope_parameters": _MINISTRAL3_ROPE}, fields.source)
    config = plain(fields, "mistral", n_kv_heads=8, head_dim=128, rms_eps=1e-5)
    rope = fields.section("rope_parameters")
    beta = rope.number("llama_4_scaling_beta", 0.0, positive=False)
    return replace(
        config,
        windows=(window_size(fields, None),) * config.n_layers,
        query_growth=(beta, rope.integer("original_max_position_embeddings")) if beta else None,
    )


def qwen2(fields: Fields) -> ModelConfig:
    """q, k and v have biases whatever the configuration says, o has none."""
    config = plain(fields, "qwen2")
    return replace(config, attention_bias=True, windows=_qwen_windows(fields, config.n_layers))


def qwen3(fields: Fields) -> ModelConfig:
    config = plain(fields, "qwen3", head_dim=128)
    return replace(config, windows=_qwen_windows(fields, config.n_layers), **biases(fields))


def smollm3(fields: Fields) -> ModelConfig:
    """Every fourth layer is not turned, unless it is said which ones are."""
    config = plain(fields, "smollm3", n_kv_heads=4, tie=True, theta=2_000_000.0)
    period = fields.integer("no_rope_layer_interval", 4)
    turned = fields.get("no_rope_layers", [int((i + 1) % period > 0) for i in range(config.n_layers)])
    if not isinstance(turned, list) or len(turned) < config.n_layers or not all(flag in (0, 1) for flag in turned):
        raise fields.bad("no_rope_layers", f"is not a list of {config.n_layers} of 0 and 1")
    windowed = fields.flag("use_sliding_window", False) and fields.get("sliding_window", None) is not None
    slides = [windowed and not flag for flag in turned[: config.n_layers]]
    return replace(
        config,
        ropes=tuple(rope if flag else None for rope, flag in zip(config.ropes, turned, strict=False)),
        windows=windows_by_type(fields, window_size(fields) if windowed else 0, slides),
        mlp_bias=fields.flag("mlp_bias", False),
        **biases(fields),
    )


def granite(fields: Fields) -> ModelConfig:
    return replace(
        plain(fields, "granite"),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        attention_scale=fields.number("attention_multiplier", 1.0),
        logit_scale=1 / fields.number("logits_scaling", 1.0),
        mlp_bias=fields.flag("mlp_bias", False),
        **biases(fields),
    )


def seed_oss(fields: Fields) -> ModelConfig:
    return replace(
        plain(fields, "seed_oss", n_kv_heads=8, head_dim=128),
        attention_bias=fields.flag("attention_bias", True),
        attention_output_bias=fields.flag("attention_out_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
    )


def ernie4_5(fields: Fields) -> ModelConfig:
    config = plain(fields, "ernie4_5", n_kv_heads=2, head_dim=128, rms_eps=1e-5, tie=True, theta=500_000.0)
    biased = fields.flag("use_bias", False)
    return replace(config, attention_bias=biased, attention_output_bias=biased, mlp_bias=biased)


def _qwen_windows(fields: Fields, n_layers: int) -> tuple[int, ...]:
    window = window_size(fields) if fields.flag("use_sliding_window", False) else 0
    first = fields.integer("max_window_layers", 28, low=0) if window else n_layers
    return windows_by_type(fields, window, [i >= first for i in range(n_layers)]) if window else (0,) * n_layers
