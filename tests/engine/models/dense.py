"""Tiny configurations of dense families: name -> (model_type of transformers, settings besides tiny.SIZES)."""

from __future__ import annotations

from typing import Any

_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.3, 1.7, 1.9, 2.0],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0],
    "partial_rotary_factor": 0.75,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
_GROWING = {"beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}

DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "ministral": (
        "ministral",
        {"head_dim": 16, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "ministral3, queries grow": (
        "ministral3",
        {"head_dim": 32, "rope_parameters": {**_YARN, **_GROWING}},
    ),
    "gemma2": ("gemma2", {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 9, "attn_logit_softcapping": 5.0}),
    "gemma2, no soft caps": (
        "gemma2",
        {"head_dim": 16, "sliding_window": 9, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "phi3": ("phi3", {"sliding_window": 11}),
    "phi3, long texts": ("phi3", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 4}),
    "phi3, short window": ("phi3", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 64}),
    "olmo2": ("olmo2", {"attention_bias": True}),
    "olmo3": (
        "olmo3",
        {
            **{"num_hidden_layers": 5, "sliding_window": 9},
            "rope_parameters": {"full_attention": _YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
        },
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 5}),
    "smollm3, listed layers, windows": (
        "smollm3",
        {"no_rope_layers": [0, 1, 1], "use_sliding_window": True, "sliding_window": 7},
    ),
    "granite": (
        "granite",
        {
            **{"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.3, "logits_scaling": 8.0},
            "rms_norm_eps": 0.1,
        },
    ),
    "starcoder2": ("starcoder2", {"sliding_window": 11}),
    "starcoder2, no biases": ("starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
    "cohere": ("cohere", {"attention_bias": True}),
    "cohere, norms of heads": ("cohere", {"use_qk_norm": True}),
    "cohere2": ("cohere2", {"num_hidden_layers": 5, "sliding_window": 9}),
    "glm": ("glm", {"head_dim": 32}),
    "glm4": ("glm4", {"head_dim": 16, "attention_bias": False}),
    "exaone4": ("exaone4", {"num_hidden_layers": 5, "sliding_window": 9}),
    "exaone4, no windows": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "gemma": ("gemma", {"head_dim": 32}),
    "seed_oss": ("seed_oss", {"head_dim": 32, "mlp_bias": True}),
    "ernie4_5": ("ernie4_5", {"head_dim": 32, "use_bias": True}),
    "arcee": ("arcee", {"attention_bias": True}),
    "stablelm": ("stablelm", {"use_qkv_bias": True, "partial_rotary_factor": 0.25}),
    "nemotron": ("nemotron", {"attention_bias": True, "mlp_bias": True}),
}
