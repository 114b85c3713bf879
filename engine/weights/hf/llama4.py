"""Llama 4 (text), and MobileLLM-R1, which is one without experts."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ExpertsConfig, ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf.experts import checked, n_experts
from engine.weights.hf.plain import biases, plain
from engine.weights.hf.windows import layer_types
from kernels.ops import Routing

STRETCHING = ("yarn", "longrope")
"""Rope types that make heads longer as they turn them, which a norm after turning would undo."""


def llama4(fields: Fields) -> ModelConfig:
    given = fields.values
    config = plain(
        fields,
        "llama4",
        n_kv_heads=given.get("num_key_value_heads", 8),
        head_dim=given.get("head_dim", 128),
        rms_eps=1e-5,
        theta=500_000.0,
    )
    normed, rope = fields.flag("use_qk_norm", True), config.ropes[0]
    if normed and rope.scaling in STRETCHING:
        raise fields.bad("use_qk_norm", f"is true, which of models with the rope type {rope.scaling} is not supported")
    turned = _turned(fields, config.n_layers)
    return replace(
        config,
        intermediate_size=fields.integer("intermediate_size_mlp", 16_384),
        ropes=tuple(rope if turns else None for turns in turned),
        windows=_chunks(fields, turned),
        chunked_windows=True,
        head_norms=normed,
        query_growth=_growth(fields),
        query_shift=1,
        experts=_experts(fields, config),
        **biases(fields),
    )


def _turned(fields: Fields, n_layers: int) -> list[bool]:
    """Of each layer: whether its heads are. An empty list says nothing, as in Llama 4's own files."""
    period = fields.integer("no_rope_layer_interval", 4)
    turned = fields.get("no_rope_layers", None) or [int((i + 1) % period > 0) for i in range(n_layers)]
    if not isinstance(turned, list) or len(turned) < n_layers or not all(flag in (0, 1) for flag in turned):
        raise fields.bad("no_rope_layers", f"is not a list of {n_layers} of 0 and 1")
    return [bool(flag) for flag in turned[:n_layers]]


def _chunks(fields: Fields, turned: list[bool]) -> tuple[int, ...]:
    """An explicit null says that there are none."""
    none = fields.values.get("attention_chunk_size", 8192) is None
    size = 0 if none else fields.integer("attention_chunk_size", 8192)
    default = ["chunked_attention" if turns and size else "full_attention" for turns in turned]
    types = layer_types(fields, default, ("chunked_attention", "full_attention"))
    if "chunked_attention" in types and not size:
        raise fields.bad("attention_chunk_size", "is null, but some of layer_types are chunked_attention")
    return tuple(size if kind == "chunked_attention" else 0 for kind in types)


def _growth(fields: Fields) -> tuple[float, int] | None:
    """A number stands for true in older files."""
    tuned = fields.get("attn_temperature_tuning", True)
    if not isinstance(tuned, int):
        raise fields.bad("attn_temperature_tuning", f"is {tuned!r}, expected true or false")
    return (fields.number("attn_scale", 0.1), fields.integer("floor_scale", 8192)) if tuned else None


def _experts(fields: Fields, config: ModelConfig) -> ExpertsConfig | None:
    layers = fields.get("moe_layers", None)
    if layers is None:
        step = fields.integer("interleave_moe_layer_step", 1)
        layers = list(range(step - 1, config.n_layers, step))
    if not isinstance(layers, list) or not all(isinstance(i, int) and 0 <= i < config.n_layers for i in layers):
        raise fields.bad("moe_layers", f"is not a list of layers below {config.n_layers}")
    if not layers:
        return None
    experts = ExpertsConfig(
        n_experts=n_experts(fields, 16),
        width=config.intermediate_size,
        routing=Routing(fields.integer("num_experts_per_tok", 1), "chosen_sigmoid"),
        layers=tuple(layers),
        shared_width=config.intermediate_size,
        gains_first=True,
        stored_turned=True,
    )
    return checked(experts, fields)
