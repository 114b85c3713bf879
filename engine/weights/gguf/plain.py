"""What a GGUF's metadata has in common for most architectures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelLoadError
from engine.weights.config import ModelConfig, RopeConfig
from engine.weights.fields import Fields


@dataclass(frozen=True, slots=True)
class Described:
    """What a file tells besides its metadata."""

    shapes: Mapping[str, tuple[int, ...]]
    """Of its tensors by their GGUF names, rows first."""
    rope_factors: tuple[float, ...] | None = None
    """The rope_freqs tensor."""


def plain(fields: Fields, file: Described, family: str, *, theta: float = 10_000.0) -> ModelConfig:
    """A decoder whose layers all see all tokens, turned by one rope; biases where the file has them. Raises ModelLoadError."""
    hidden_size, n_heads = fields.integer("embedding_length"), same_everywhere(fields, "attention.head_count")
    n_layers = fields.integer("block_count", high=4096)
    n_kv_heads = same_everywhere(fields, "attention.head_count_kv", n_heads)
    if n_heads % n_kv_heads:
        raise fields.bad("attention.head_count_kv", f"is {n_kv_heads}, which does not divide {n_heads} attention heads")
    head_dim = fields.integer("attention.key_length", hidden_size // n_heads)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.bad("attention.value_length", f"differs from the keys' {head_dim}")
    if len(file.shapes.get("token_embd.weight", ())) != 2:
        what = "the tensor token_embd.weight is missing or not a matrix"
        raise ModelLoadError(f"{fields.source}: {what}.", "Download the model again.")
    rope = read_rope(fields, theta, head_dim, file.rope_factors)
    context = fields.integer("context_length")
    if rope.scaling == "yarn":
        context = max(context, int(rope.params["original_max_position_embeddings"] * rope.params["factor"]))
    return ModelConfig(
        family=family,
        vocab_size=file.shapes["token_embd.weight"][0],
        hidden_size=hidden_size,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        intermediate_size=same_everywhere(fields, "feed_forward_length"),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        max_position=context,
        tie_embeddings="output.weight" not in file.shapes,
        ropes=(rope,) * n_layers,
        windows=(0,) * n_layers,
        attention_scale=head_dim**-0.5,
        activation="silu",
        attention_bias="blk.0.attn_q.bias" in file.shapes,
        attention_output_bias="blk.0.attn_output.bias" in file.shapes,
        mlp_bias="blk.0.ffn_gate.bias" in file.shapes,
        attn_soft_cap=fields.number("attn_logit_softcapping", 0.0),
        logit_soft_cap=fields.number("final_logit_softcapping", 0.0),
    )


def same_everywhere(fields: Fields, name: str, default: int | None = None) -> int:
    """A number that some architectures give per layer; the ones served here have the same in all layers."""
    value = fields.get(name, None)
    if _is_array(value) and len(value):
        if any(item != value[0] for item in value):
            raise fields.bad(name, "differs from layer to layer", "Models with layers of different sizes are not supported.")
        return Fields({name: value[0]}, fields.source).integer(name)
    return fields.integer(name) if default is None else fields.integer(name, default)


def _is_array(value: Any) -> bool:
    return isinstance(value, (list, memoryview))


def read_rope(fields: Fields, theta: float, head_dim: int, factors: tuple[float, ...] | None) -> RopeConfig:
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


def pattern_windows(fields: Fields, n_layers: int, period: int) -> tuple[int, ...]:
    """Every period-th layer is full, unless the file says otherwise (a period, or a flag per layer)."""
    window = fields.integer("attention.sliding_window")
    pattern = fields.get("attention.sliding_window_pattern", period)
    if _is_array(pattern) and len(pattern) == n_layers:
        return tuple(window if sliding else 0 for sliding in pattern)
    if _is_array(pattern):
        raise fields.bad("attention.sliding_window_pattern", f"has {len(pattern)} flags for {n_layers} layers")
    period = fields.integer("attention.sliding_window_pattern", period)
    return tuple(window if (i + 1) % period else 0 for i in range(n_layers))
