"""Qwen3-Next and Qwen3.5, with an MLP or with experts."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.experts import qwen_experts
from engine.weights.hf.plain import biases, plain
from engine.weights.hf.recurrent import delta_net

TEXT = {
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "max_position_embeddings": 32_768,
}


def qwen3_5(fields: Fields) -> ModelConfig:
    config = plain(fields, "qwen3_5", n_kv_heads=4, head_dim=256, turned=0.25)
    return replace(config, recurrent=delta_net(fields, config.n_layers), **biases(fields))


MOE_TEXT = {
    "vocab_size": 248_320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "max_position_embeddings": 32_768,
}


def qwen3_5_moe(fields: Fields) -> ModelConfig:
    """Its configuration has no size of an MLP, for no layer has one."""
    unneeded = Fields({"intermediate_size": 1, **fields.values}, fields.source)
    config = plain(unneeded, "qwen3_5", n_kv_heads=2, head_dim=256, turned=0.25)
    everywhere = Fields({**fields.values, "mlp_only_layers": [], "norm_topk_prob": True}, fields.source)
    experts = qwen_experts(everywhere, config.n_layers, n=256, n_used=8, width=512, normalised=True, shared_width=512)
    return replace(config, recurrent=delta_net(fields, config.n_layers), experts=experts, **biases(fields))


def qwen3_next(fields: Fields) -> ModelConfig:
    config = plain(fields, "qwen3_next", n_kv_heads=2, head_dim=256, turned=0.25)
    experts = qwen_experts(fields, config.n_layers, n=512, n_used=10, width=512, normalised=True, shared_width=512)
    return replace(config, recurrent=delta_net(fields, config.n_layers), experts=experts, **biases(fields))
