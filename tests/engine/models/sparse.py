"""Tiny models with experts, and hybrids of attention and states: (model type, settings) beside tiny.SIZES, by name."""

from __future__ import annotations

from typing import Any

_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48}
_SHARED = {"shared_expert_intermediate_size": 32}
_DELTA = {
    **{"head_dim": 32, "num_hidden_layers": 5, "linear_num_value_heads": 4, "linear_num_key_heads": 2},
    **{"linear_key_head_dim": 16, "linear_value_head_dim": 24},
}
_GRANITE = {
    **{"num_hidden_layers": 4, "mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 2, "shared_intermediate_size": 48},
    **{"layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"], "mamba_chunk_size": 16},
    **{"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0, "attention_multiplier": 0.2},
}
_YARN = {
    **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    "original_max_position_embeddings": 16,
}
_CONV = ["conv", "full_attention", "conv", "conv", "full_attention"]

_LLAMA4 = {
    **{"num_hidden_layers": 5, "no_rope_layers": [1, 0, 1, 1, 0], "attention_chunk_size": 9, "head_dim": 16},
    **{"floor_scale": 5, "attn_scale": 0.7, "num_local_experts": 6, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 80},
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mixtral", {"num_local_experts": 5}),
    "mixtral, window": ("mixtral", {"num_local_experts": 4, "sliding_window": 9, "head_dim": 32}),
    "qwen2_moe": ("qwen2_moe", {**_EXPERTS, **_SHARED}),
    "qwen2_moe, some layers, normalised": (
        "qwen2_moe",
        {**_EXPERTS, **_SHARED, "mlp_only_layers": [1], "norm_topk_prob": True, "num_hidden_layers": 4},
    ),
    "qwen3_moe": ("qwen3_moe", {**_EXPERTS, "norm_topk_prob": True, "head_dim": 32}),
    "qwen3_moe, every other layer": ("qwen3_moe", {**_EXPERTS, "decoder_sparse_step": 2, "num_hidden_layers": 4}),
    "qwen3_next": ("qwen3_next", {**_EXPERTS, **_SHARED, **_DELTA}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**_EXPERTS, **_SHARED, **_DELTA}),
    "gpt_oss": (
        "gpt_oss",
        {
            **{"num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 16, "intermediate_size": 48, "sliding_window": 9},
            **{"rope_parameters": _YARN, "num_hidden_layers": 4},
        },
    ),
    "glm4_moe": (
        "glm4_moe",
        {
            **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "n_group": 4, "topk_group": 2},
            **{"first_k_dense_replace": 1, "use_qk_norm": True, "routed_scaling_factor": 1.5, "attention_bias": True},
            "head_dim": 32,
        },
    ),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {"moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 48, "num_hidden_layers": 4, "moe_layer_end_index": 2},
    ),
    "lfm2": ("lfm2", {"layer_types": _CONV, "num_hidden_layers": 5, "block_multiple_of": 32, "conv_bias": True}),
    "lfm2_moe": ("lfm2_moe", {**_EXPERTS, "layer_types": _CONV, "num_hidden_layers": 5, "num_dense_layers": 2}),
    "lfm2_moe, scaled, without a bias": (
        "lfm2_moe",
        {**_EXPERTS, "layer_types": _CONV[:3], "num_dense_layers": 1, "routed_scaling_factor": 1.5, "use_expert_bias": False},
    ),
    "granitemoehybrid": ("granitemoehybrid", {**_GRANITE, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "llama4": ("llama4_text", _LLAMA4),
    "llama4, two experts of a token, neither norms nor growth": (
        "llama4_text",
        {
            **{**_LLAMA4, "num_experts_per_tok": 2, "moe_layers": [0, 1, 4], "use_qk_norm": False, "attention_bias": True},
            # Gate and up of an expert are as wide together as they are long.
            **{"attention_chunk_size": 16, "attn_temperature_tuning": False, "intermediate_size": 32},
        },
    ),
    "llama4 without experts, all seen": (
        "llama4_text",
        {**_LLAMA4, "moe_layers": [], "no_rope_layers": [1] * 5, "attention_chunk_size": None, "tie_word_embeddings": True},
    ),
    "granitemoehybrid, no experts, turned": (
        "granitemoehybrid",
        {**_GRANITE, "num_local_experts": 0, "position_embedding_type": "rope"},
    ),
}
