"""What families call a thing that most call otherwise, and matrices that they store as one; for ArrangedCheckpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from engine.weights.config import ModelConfig

EXPERT_NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}

_SHARED = (r"\.mlp\.shared_experts\.", ".mlp.shared_expert.")

RENAMED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "mixtral": ((r"\.block_sparse_moe\.", ".mlp."),),
    "gpt_oss": ((r"\.mlp\.router\.", ".mlp.gate."),),
    "glm4_moe": (_SHARED,),
    "deepseek": (_SHARED,),
    "llama4": ((r"\.feed_forward\.router\.", ".mlp.gate."), (r"\.feed_forward\.", ".mlp.")),
    "ernie4_5_moe": (_SHARED, (r"\.mlp\.moe_statics\.", ".mlp.gate.")),
    "lfm2": (
        (r"^model\.embedding_norm\.", "model.norm."),
        (r"\.operator_norm\.", ".input_layernorm."),
        (r"\.ffn_norm\.", ".post_attention_layernorm."),
        (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."),
        (r"\.feed_forward\.expert_bias", ".mlp.gate.e_score_correction_bias"),
        (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
        (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
        (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
        (r"\.feed_forward\.", ".mlp."),
    ),
    "granitemoehybrid": (
        (r"\.block_sparse_moe\.router\.layer\.", ".mlp.gate."),
        (r"\.block_sparse_moe\.input_linear\.weight", ".mlp.experts.gate_up_proj"),
        (r"\.block_sparse_moe\.output_linear\.weight", ".mlp.experts.down_proj"),
        (r"\.shared_mlp\.output_linear\.", ".mlp.shared_expert.down_proj."),
        (r"\.shared_mlp\.input_linear\.", ".mlp.shared_expert.gate_up_proj."),
    ),
}
"""By family: patterns of a safetensors checkpoint's names, and what stands in their place; all are applied, in order."""

Split = dict[str, Tensor]
"""Name -> the rows of the stored matrix that it has, int64."""


def _delta_inputs(found: re.Match, config: ModelConfig) -> Split:
    """qwen3_next has, for each key head in turn, rows of its q, its k, and of v and z of the value heads that it serves."""
    recurrent = config.recurrent
    each = recurrent.n_heads // recurrent.n_key_heads * recurrent.head_dim
    q, k, v, z = _by_head(recurrent.n_key_heads, (recurrent.key_dim, recurrent.key_dim, each, each))
    return {f"{found[1]}.in_proj_qkv.weight": torch.cat((q, k, v)), f"{found[1]}.in_proj_z.weight": z}


def _delta_gates(found: re.Match, config: ModelConfig) -> Split:
    each = config.recurrent.n_heads // config.recurrent.n_key_heads
    b, a = _by_head(config.recurrent.n_key_heads, (each, each))
    return {f"{found[1]}.in_proj_b.weight": b, f"{found[1]}.in_proj_a.weight": a}


def _by_head(n_heads: int, sizes: tuple[int, ...]) -> list[Tensor]:
    """Rows of each kind, where a head has so many of each, one kind after the other."""
    rows = torch.arange(n_heads * sum(sizes)).view(n_heads, -1)
    return [part.flatten() for part in rows.split(sizes, 1)]


def _query_and_gate(found: re.Match, config: ModelConfig) -> Split:
    """Of each head in turn the rows of its query, then those of a gate for what the head returns."""
    q, gate = _by_head(config.n_heads, (config.head_dim, config.head_dim))
    return {f"{found[1]}.q_proj.{found[2]}": q, f"{found[1]}.q_gate.{found[2]}": gate}


_GATED = (r"(.*\.self_attn)\.q_proj\.(weight|bias)", _query_and_gate)


def _gate_and_up(found: re.Match, config: ModelConfig) -> Split:
    width = config.shared_width
    rows = torch.arange(2 * width)
    return {f"{found[1]}.gate_proj.weight": rows[:width], f"{found[1]}.up_proj.weight": rows[width:]}


SPLITS: Mapping[str, tuple[tuple[str, Callable[[re.Match, ModelConfig], Split]], ...]] = {
    "qwen3_5": (_GATED,),
    "qwen3_next": (
        _GATED,
        (r"(.*\.linear_attn)\.in_proj_qkvz\.weight", _delta_inputs),
        (r"(.*\.linear_attn)\.in_proj_ba\.weight", _delta_gates),
    ),
    "granitemoehybrid": ((r"(.*\.shared_expert)\.gate_up_proj\.weight", _gate_and_up),),
}
"""By family: patterns of names in the words of most, and how such a matrix is cut."""
