"""Decoders with experts in the place of MLPs: mixtral, qwen2_moe, qwen3_moe, gpt_oss, glm4_moe, ernie4_5_moe."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ExpertsConfig, ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.experts import checked, n_experts, qwen_experts
from engine.weights.hf.plain import biases, plain
from engine.weights.hf.windows import window_size, windows_by_type
from kernels.ops import Routing


def mixtral(fields: Fields) -> ModelConfig:
    config = plain(fields, "mixtral", n_kv_heads=8, rms_eps=1e-5, theta=1_000_000.0)
    window = 0 if fields.get("sliding_window", None) is None else window_size(fields)
    experts = ExpertsConfig(
        n_experts=n_experts(fields, 8),
        width=config.intermediate_size,
        routing=Routing(fields.integer("num_experts_per_tok", 2), normalised=True),
        layers=tuple(range(config.n_layers)),
    )
    return replace(config, windows=(window,) * config.n_layers, experts=checked(experts, fields))


def qwen2_moe(fields: Fields) -> ModelConfig:
    config = plain(fields, "qwen2_moe", n_kv_heads=16)
    window = window_size(fields) if fields.flag("use_sliding_window", False) else 0
    first = fields.integer("max_window_layers", 28, low=0)
    slides = [window > 0 and i % 2 == 0 and i < first for i in range(config.n_layers)]
    return replace(
        config,
        windows=windows_by_type(fields, window, slides),
        attention_bias=fields.flag("qkv_bias", True),
        experts=qwen_experts(fields, config.n_layers, n=60, n_used=4, width=1408, normalised=False, shared_width=5632),
    )


def qwen3_moe(fields: Fields) -> ModelConfig:
    config = plain(fields, "qwen3_moe", n_kv_heads=4)
    window = window_size(fields) if fields.flag("use_sliding_window", False) else 0
    return replace(
        config,
        windows=(window,) * config.n_layers,
        head_norms=True,
        experts=qwen_experts(fields, config.n_layers, n=128, n_used=8, width=768, normalised=False),
        **biases(fields),
    )


QWEN3_VL_MOE_TEXT = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "max_position_embeddings": 128_000,
}


def qwen3_vl_moe(fields: Fields) -> ModelConfig:
    """As Qwen3 with experts, but for defaults, and for gains, which are always divided by their sum."""
    config = plain(fields, "qwen3_moe", n_kv_heads=16, tie=True, theta=500_000.0)
    values = Fields({**fields.values, "norm_topk_prob": True}, fields.source)
    experts = qwen_experts(values, config.n_layers, n=60, n_used=4, width=1408, normalised=True)
    return replace(config, head_norms=True, experts=experts, **biases(fields))


_GPT_OSS_ROPE = {
    **{"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
}


def gpt_oss(fields: Fields) -> ModelConfig:
    if not (fields.get("rope_parameters", None) or fields.get("rope_scaling", None)):
        fields = Fields({**fields.values, "rope_parameters": _GPT_OSS_ROPE}, fields.source)
    config = plain(fields, "gpt_oss", n_kv_heads=8, head_dim=64, rms_eps=1e-5, theta=150_000.0)
    slides = [i % 2 == 0 for i in range(config.n_layers)]
    biased = fields.flag("attention_bias", True)
    experts = ExpertsConfig(
        n_experts=n_experts(fields, 128),
        width=config.intermediate_size,
        routing=Routing(fields.integer("num_experts_per_tok", 4), "chosen"),
        layers=tuple(range(config.n_layers)),
        bias=True,
        activation="clipped",
        alpha=fields.number("swiglu_alpha", 1.702),
        limit=fields.number("swiglu_limit", 7.0),
        stored_turned=True,
        stored_paired=True,
    )
    return replace(
        config,
        windows=windows_by_type(fields, window_size(fields, 128), slides),
        attention_bias=biased,
        attention_output_bias=biased,
        attention_sinks=True,
        experts=checked(experts, fields),
    )


def glm4_moe(fields: Fields) -> ModelConfig:
    config = plain(fields, "glm4_moe", n_kv_heads=8, rms_eps=1e-5, turned=0.5)
    width = fields.integer("moe_intermediate_size", 1408)
    routing = Routing(
        fields.integer("num_experts_per_tok", 8),
        "sigmoid",
        normalised=fields.flag("norm_topk_prob", True),
        eps=1e-20,
        scale=fields.number("routed_scaling_factor", 1.0),
        n_groups=fields.integer("n_group", 1),
        n_used_groups=fields.integer("topk_group", 1),
    )
    experts = ExpertsConfig(
        n_experts=fields.integer("n_routed_experts", n_experts(fields, 128)),
        width=width,
        routing=routing,
        layers=tuple(range(fields.integer("first_k_dense_replace", 1, low=0), config.n_layers)),
        choice_bias=True,
        shared_width=width * fields.integer("n_shared_experts", 1, low=0),
    )
    return replace(
        config,
        attention_bias=fields.flag("attention_bias", False),
        head_norms=fields.flag("use_qk_norm", False),
        experts=checked(experts, fields),
    )


def ernie4_5_moe(fields: Fields) -> ModelConfig:
    config = plain(fields, "ernie4_5_moe", n_kv_heads=4, rms_eps=1e-5, tie=True, theta=500_000.0)
    if fields.flag("use_bias", False):
        raise fields.bad("use_bias", "is true, and ERNIE's experts with biases are not supported")
    width = fields.integer("moe_intermediate_size", 1536)
    first, step = fields.integer("moe_layer_start_index", 1, low=0), fields.integer("moe_layer_interval", 1)
    last = fields.integer("moe_layer_end_index", -1, low=-1)
    last = config.n_layers - 1 if last == -1 else last
    n_used = fields.integer("moe_k", fields.integer("num_experts_per_tok", 6))
    experts = ExpertsConfig(
        n_experts=fields.integer("moe_num_experts", 64),
        width=width,
        routing=Routing(n_used, normalised=True),
        layers=tuple(i for i in range(config.n_layers) if (i + 1) % step == 0 and first <= i <= last),
        choice_bias=True,
        shared_width=width * fields.integer("moe_num_shared_experts", 2, low=0),
    )
    return replace(config, experts=checked(experts, fields))
