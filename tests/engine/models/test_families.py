"""Logits of every family against transformers, in float32."""

from __future__ import annotations

import random

import pytest
import torch

from engine.config import EngineConfig
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from tests.engine.models import tiny
from tests.engine.models.dense import DENSE
from tests.engine.runner.feeding import logits_of

PROMPTS = [random.Random(n).choices(range(99), k=n) for n in (64, 1, 16, 37, 5)]
"""Lengths at, above and below borders of blocks and windows."""

LATENT = {
    **{"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24},
    **{"num_key_value_heads": 4, "first_k_dense_replace": 3, "num_hidden_layers": 3},
}
YARN = {
    **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16},
    **{"mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 32, "beta_slow": 1},
}

EXPERTS = {
    **{"first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 48},
    **{"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "routed_scaling_factor": 1.7},
}

GEMMA4 = {
    **{"head_dim": 16, "global_head_dim": 32, "num_hidden_layers": 6, "sliding_window": 9, "rms_norm_eps": 0.01},
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}

MODELS = {
    "llama": ("llama", {}),
    "llama, biases, tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama, one KV head, large heads": ("llama", {"num_key_value_heads": 1, "head_dim": 32}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "llama, llama3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama, yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
    ),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, window on late layers": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3, biases": ("qwen3", {"head_dim": 16, "attention_bias": True}),
    "gemma3": (
        "gemma3_text",
        {"head_dim": 32, "num_hidden_layers": 7, "sliding_window": 9, "query_pre_attn_scalar": 24, "vocab_size": 99},
    ),
    "gemma3, soft cap": ("gemma3_text", {"head_dim": 16, "sliding_window": 9, "final_logit_softcapping": 3.0}),
    "qwen3_5": (
        "qwen3_5_text",
        {
            **{"head_dim": 32, "num_hidden_layers": 5, "linear_num_value_heads": 4, "linear_num_key_heads": 2},
            **{"linear_key_head_dim": 16, "linear_value_head_dim": 24},
        },
    ),
    "bamba": (
        "bamba",
        {
            **{"num_hidden_layers": 4, "attn_layer_indices": [2], "mamba_n_heads": 8, "mamba_d_state": 16},
            **{"mamba_n_groups": 2, "mamba_chunk_size": 16},
        },
    ),
    **{
        f"deepseek v{v}, {what}": (f"deepseek_v{v}", {**LATENT, **settings})
        for v in (2, 3)
        for what, settings in {
            "latent queries": {"q_lora_rank": 24},
            "plain queries, biases": {"q_lora_rank": None, "attention_bias": True},
            "yarn": {"q_lora_rank": 24, "rope_parameters": YARN},
            "experts": {"q_lora_rank": 24, **EXPERTS},
        }.items()
    },
    "deepseek v2, experts by groups": ("deepseek_v2", {**LATENT, **EXPERTS, "topk_method": "group_limited_greedy"}),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        {**LATENT, **EXPERTS, "q_lora_rank": 24, "mlp_layer_types": ["sparse", "dense", "sparse"]},
    ),
    "youtu": ("youtu", {**LATENT, "q_lora_rank": 24}),
    "deepseek v3, turned by halves": ("deepseek_v3", {**LATENT, "q_lora_rank": 24, "rope_interleave": False}),
    "gemma4": ("gemma4_text", {**GEMMA4, "hidden_size_per_layer_input": 0}),
    "gemma4, an embedding for each layer, shared keys": (
        "gemma4_text",
        {**GEMMA4, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 99, "num_kv_shared_layers": 3}
        | {"use_double_wide_mlp": True},
    ),
    "gemma4, experts, values that are keys, soft cap": (
        "gemma4_text",
        {**GEMMA4, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
        | {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 48}
        | {"final_logit_softcapping": 3.0},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 6}),
    **DENSE,
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers_whole_and_in_chunks(name, tmp_path) -> None:
    family, settings = MODELS[name]
    expected = tiny.logits(tiny.saved(tmp_path, family, **settings), PROMPTS)
    runner = ModelRunner(EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact"), open_checkpoint(tmp_path))
    for most in (64, 7):
        for ours, theirs in zip(logits_of(runner, PROMPTS, most=most), expected, strict=True):
            assert ours.dtype == torch.float32
            assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("name", ["gemma3", *DENSE])
def test_every_part_of_the_tiny_models_matters_to_their_logits(name, tmp_path) -> None:
    """Otherwise the comparison above would not notice one that is left out."""
    family, settings = MODELS[name]
    model = tiny.saved(tmp_path, family, **settings)
    generator = torch.Generator().manual_seed(0)
    before = tiny.logits(model, PROMPTS[:1])[0]
    for name, parameter in model.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.mul_(1 + 0.5 * torch.randn(parameter.shape, generator=generator))
            changed = tiny.logits(model, PROMPTS[:1])[0]
            parameter.copy_(kept)
        assert (changed - before).abs().max() > 1e-3 * before.abs().max(), name
