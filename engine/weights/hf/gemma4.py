"""Gemma 4 (text)."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ExpertsConfig, KVShape, ModelConfig, RopeConfig
from engine.weights.fields import Fields
from engine.weights.hf.experts import checked
from engine.weights.hf.plain import plain
from engine.weights.hf.rope import read_rope
from engine.weights.hf.windows import window_size, windows_by_type
from kernels.ops import Routing

TEXT = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "max_position_embeddings": 131_072,
}


def gemma4(fields: Fields) -> ModelConfig:
    if fields.get("use_bidirectional_attention", None) == "all":
        raise fields.bad("use_bidirectional_attention", "is all, but only causal models generate text")
    own = {name: value for name, value in fields.values.items() if name != "rope_parameters"}
    config = plain(
        Fields({**TEXT, **own}, fields.source),
        "gemma4",
        n_kv_heads=4,
        head_dim=256,
        tie=True,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
    )
    n_layers = config.n_layers
    windows = windows_by_type(fields, window_size(fields, 512), [(i + 1) % 6 > 0 for i in range(n_layers)])
    windows = (*windows[:-1], 0)  # whatever is listed, as in transformers
    shapes = _shapes(fields, config, windows)
    values_are_keys = fields.flag("attention_k_eq_v", False)
    return replace(
        config,
        windows=windows,
        kv_shapes=shapes,
        kv_sources=kv_sources(windows, fields.integer("num_kv_shared_layers", 0, low=0), fields),
        values_are_keys=tuple(values_are_keys and not window for window in windows),
        ropes=_ropes(fields, config, shapes, windows),
        attention_scale=1.0,
        attention_bias=fields.flag("attention_bias", False),
        logit_soft_cap=fields.number("final_logit_softcapping", 0.0),
        embedding_scale=config.hidden_size**0.5,
        layer_input_size=fields.integer("hidden_size_per_layer_input", 256, low=0),
        layer_input_vocab=fields.integer("vocab_size_per_layer_input", 262_144),
        wide_where_shared=fields.flag("use_double_wide_mlp", False),
        experts=_experts(fields, n_layers),
    )


def kv_sources(windows: tuple[int, ...], n_shared: int, fields: Fields) -> tuple[int, ...]:
    """The last n_shared layers read what the last one before them of the same window has written."""
    first = len(windows) - n_shared
    last = {window: i for i, window in enumerate(windows[: max(first, 0)])}
    if not all(window in last for window in windows):
        raise fields.bad("num_kv_shared_layers", f"is {n_shared}: layers of some kind are all among them")
    return tuple(i if i < first else last[window] for i, window in enumerate(windows))


def _shapes(fields: Fields, config: ModelConfig, windows: tuple[int, ...]) -> tuple[KVShape, ...]:
    """Files have sizes of the layers of all tokens, or those of each layer that differs."""
    listed = fields.get("per_layer_config", None)
    if listed is not None:
        sections = {str(i): fields.section("per_layer_config").section(str(i)) for i in range(config.n_layers)}
        own = [sections[str(i)] for i in range(config.n_layers)]
    else:
        names = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
        of_all = {name: fields.integer(stored) for name, stored in names.items() if fields.get(stored, None) is not None}
        of_all = {"head_dim": 512, **of_all}
        if not fields.flag("attention_k_eq_v", False):
            of_all.pop("num_key_value_heads", None)
        own = [Fields({} if window else of_all, fields.source) for window in windows]
    shapes = []
    for of_layer in own:
        n_heads = of_layer.integer("num_key_value_heads", config.n_kv_heads)
        if config.n_heads % n_heads:
            raise fields.bad("num_key_value_heads", f"is {n_heads}, which does not divide {config.n_heads} attention heads")
        dim = of_layer.integer("head_dim", config.head_dim)
        shapes.append(KVShape(n_heads, dim, dim))
    return tuple(shapes)


def _ropes(fields: Fields, config: ModelConfig, shapes: tuple[KVShape, ...], windows: tuple[int, ...]) -> tuple[RopeConfig, ...]:
    usual = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    }
    nested = fields.section("rope_parameters")
    sections = Fields({**usual, **nested.values}, nested.source)

    def of(shape: KVShape, window: int) -> RopeConfig:
        section = sections.section("sliding_attention" if window else "full_attention")
        if section.text("rope_type", "default") != "proportional":
            return read_rope(Fields({}, fields.source), section, 10_000.0, shape.key_dim, config.max_position)
        n_turned = int(section.number("partial_rotary_factor", 1.0) * shape.key_dim // 2)
        return proportional(section.number("rope_theta"), shape.key_dim, n_turned, section.number("factor", 1.0))

    return tuple(of(shape, window) for shape, window in zip(shapes, windows, strict=True))


def proportional(theta: float, head_dim: int, n_turned: int, factor: float = 1.0) -> RopeConfig:
    """The first n_turned of head_dim / 2 pairs turn, as they would if all did."""
    return RopeConfig(
        theta, head_dim, "factors", {"factors": (factor,) * n_turned + (float("inf"),) * (head_dim // 2 - n_turned)}
    )


def _experts(fields: Fields, n_layers: int) -> ExpertsConfig | None:
    if not fields.flag("enable_moe_block", False):
        return None
    experts = ExpertsConfig(
        n_experts=fields.integer("num_experts"),
        width=fields.integer("moe_intermediate_size"),
        routing=Routing(fields.integer("top_k_experts"), normalised=True),
        layers=tuple(range(n_layers)),
    )
    return checked(experts, fields)
