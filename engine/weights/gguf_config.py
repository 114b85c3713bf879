"""ModelConfig from a GGUF's metadata (keys as in gguf's constants.py; meaning as in llama.cpp's llama-model.cpp)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.errors import ModelLoadError
from engine.weights.config import ModelConfig, RopeConfig
from engine.weights.fields import Fields

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
"""Values of general.architecture; mistral models are "llama" in GGUF."""


def from_gguf(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    rope_factors: tuple[float, ...] | None = None,
    source: str = "GGUF",
) -> ModelConfig:
    """shapes: of the file's tensors by their GGUF names, rows first. rope_factors: the rope_freqs tensor, if there is one.

    Raises ModelLoadError, naming `source` and the field, for an architecture or a value that cannot be served.
    """
    family = Fields(metadata, source).text("general.architecture")
    if family not in ARCHITECTURES:
        hint = f"Supported: {', '.join(ARCHITECTURES)}."
        raise ModelLoadError(f"{source}: models of architecture {family} are not supported.", hint)
    fields = Fields(metadata, source, f"{family}.")
    gemma = family == "gemma3"
    hidden_size, n_heads = fields.integer("embedding_length"), _same_everywhere(fields, "attention.head_count")
    n_layers = fields.integer("block_count", high=4096)
    n_kv_heads = _same_everywhere(fields, "attention.head_count_kv", n_heads)
    if n_heads % n_kv_heads:
        raise fields.bad("attention.head_count_kv", f"is {n_kv_heads}, which does not divide {n_heads} attention heads")
    head_dim = fields.integer("attention.key_length", hidden_size // n_heads)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.bad("attention.value_length", f"differs from the keys' {head_dim}")
    if len(shapes.get("token_embd.weight", ())) != 2:
        raise ModelLoadError(f"{source}: the tensor token_embd.weight is missing or not a matrix.", "Download the model again.")
    rope = _rope(fields, 1_000_000.0 if gemma else 10_000.0, head_dim, rope_factors)
    context = fields.integer("context_length")
    if rope.scaling == "yarn":
        context = max(context, int(rope.params["original_max_position_embeddings"] * rope.params["factor"]))
    return ModelConfig(
        family=family,
        vocab_size=shapes["token_embd.weight"][0],
        hidden_size=hidden_size,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        intermediate_size=_same_everywhere(fields, "feed_forward_length"),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        max_position=context,
        tie_embeddings="output.weight" not in shapes,
        attention_bias="blk.0.attn_q.bias" in shapes,
        attention_output_bias="blk.0.attn_output.bias" in shapes,
        mlp_bias="blk.0.ffn_gate.bias" in shapes,
        rope=rope,
        local_rope=RopeConfig(fields.number("rope.freq_base_swa", 10_000.0), head_dim) if gemma else None,
        windows=_windows(fields, n_layers) if gemma else (0,) * n_layers,
        attention_scale=_attention_scale(hidden_size, n_heads, n_layers, head_dim, gemma),
        attn_soft_cap=fields.number("attn_logit_softcapping", 0.0),
        logit_soft_cap=fields.number("final_logit_softcapping", 0.0),
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
        activation="gelu_tanh" if gemma else "silu",
    )


def _same_everywhere(fields: Fields, name: str, default: int | None = None) -> int:
    """A number that some architectures give per layer; the ones served here have the same in all layers."""
    value = fields.get(name, None)
    if _is_array(value) and len(value):
        if any(item != value[0] for item in value):
            raise fields.bad(name, "differs from layer to layer", "Models with layers of different sizes are not supported.")
        return Fields({name: value[0]}, fields.source).integer(name)
    return fields.integer(name) if default is None else fields.integer(name, default)


def _is_array(value: Any) -> bool:
    return isinstance(value, (list, memoryview))


def _rope(fields: Fields, theta: float, head_dim: int, factors: tuple[float, ...] | None) -> RopeConfig:
    theta = fields.number("rope.freq_base", theta)
    rotary_dim = fields.integer("rope.dimension_count", head_dim)
    if rotary_dim % 2 or rotary_dim > head_dim:
        raise fields.bad("rope.dimension_count", f"is {rotary_dim}: such a part of {head_dim} dims cannot rotate in pairs")
    if factors is not None:
        if len(factors) != rotary_dim // 2 or not all(math.isfinite(factor) and factor > 0 for factor in factors):
            what = f"rope_freqs.weight is not {rotary_dim // 2} positive numbers"
            raise ModelLoadError(f"{fields.source}: {what}.", "Download the file again.")
        return RopeConfig(theta, rotary_dim, "factors", {"factors": factors})
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    scaling = fields.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    if scaling == "none" or (scaling == "linear" and factor == 1.0):
        return RopeConfig(theta, rotary_dim)
    if scaling == "linear":
        return RopeConfig(theta, rotary_dim, "linear", {"factor": factor})
    if scaling != "yarn":
        raise fields.bad("rope.scaling.type", f"is {scaling}", "Supported: none, linear, yarn.")
    scale = fields.number("rope.scaling.attn_factor", 1.0)
    original = fields.integer("rope.scaling.original_context_length", fields.integer("context_length"))
    params = {
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": fields.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": fields.number("rope.scaling.yarn_beta_slow", 1.0),
        "attention_factor": scale * (0.1 * math.log(max(factor, 1.0)) + 1.0),
        "mscale": None,
        "mscale_all_dim": None,
        "truncate": True,
    }
    return RopeConfig(theta, rotary_dim, "yarn", params)


def _windows(fields: Fields, n_layers: int) -> tuple[int, ...]:
    """Of gemma3: every sixth layer is full, unless the file says otherwise (a period, or a flag per layer)."""
    window = fields.integer("attention.sliding_window")
    pattern = fields.get("attention.sliding_window_pattern", 6)
    if _is_array(pattern) and len(pattern) == n_layers:
        return tuple(window if sliding else 0 for sliding in pattern)
    if _is_array(pattern):
        raise fields.bad("attention.sliding_window_pattern", f"has {len(pattern)} flags for {n_layers} layers")
    period = fields.integer("attention.sliding_window_pattern", 6)
    return tuple(window if (i + 1) % period else 0 for i in range(n_layers))


def _attention_scale(hidden_size: int, n_heads: int, n_layers: int, head_dim: int, gemma: bool) -> float:
    """GGUF has no query_pre_attn_scalar. It is the head size in every gemma3 but the 27B (62 layers), as llama.cpp knows too."""
    return (hidden_size / n_heads if gemma and n_layers == 62 else head_dim) ** -0.5
