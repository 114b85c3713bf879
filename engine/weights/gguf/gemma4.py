"""Gemma 4, from a GGUF's metadata; which layers make values of keys is told by their tensors."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import KVShape, ModelConfig, RopeConfig
from engine.weights.fields import Fields
from engine.weights.gguf.experts import experts
from engine.weights.gguf.plain import Described, is_array, pattern_windows, plain
from engine.weights.hf.gemma4 import kv_sources


def gemma4(fields: Fields, file: Described) -> ModelConfig:
    """Sizes of heads, and of the rope, are those of layers of all tokens; those of layers with a window end in _swa."""
    prefix, n_layers = fields.prefix, fields.integer("block_count", high=4096)
    widths, heads = (_of_layers(fields, name, n_layers) for name in ("feed_forward_length", "attention.head_count_kv"))
    whole = {f"{prefix}feed_forward_length": min(widths), f"{prefix}attention.head_count_kv": max(heads)}
    settled = Fields({**fields.values, **whole}, fields.source, prefix)
    config = plain(settled, file, "gemma4", theta=1_000_000.0, activation="gelu_tanh")
    windows = pattern_windows(fields, n_layers, 6)
    of_window = fields.integer("attention.key_length_swa", config.head_dim)
    dims = [of_window if window else config.head_dim for window in windows]
    shapes = tuple(KVShape(n, dim, dim) for n, dim in zip(heads, dims, strict=True))
    sources = kv_sources(windows, fields.integer("attention.shared_kv_layers", 0, low=0), fields)
    is_wide = [width != widths[0] for width in widths]
    if is_wide != [source != i for i, source in enumerate(sources)] and any(is_wide):
        raise fields.bad("feed_forward_length", "differs between layers that have keys of their own")
    local_dim = fields.integer("rope.dimension_count_swa", of_window)
    if local_dim % 2 or local_dim > of_window:
        what = f"is {local_dim}: such a part of {of_window} dims cannot rotate in pairs"
        raise fields.bad("rope.dimension_count_swa", what)
    local = RopeConfig(fields.number("rope.freq_base_swa", 10_000.0), local_dim)
    size = fields.integer("embedding_length_per_layer_input", 0, low=0)
    return replace(
        config,
        windows=windows,
        ropes=tuple(local if window else rope for window, rope in zip(windows, config.ropes, strict=True)),
        kv_shapes=shapes,
        kv_sources=sources,
        values_are_keys=tuple(f"blk.{i}.attn_v.weight" not in file.shapes for i in range(n_layers)),
        wide_where_shared=any(is_wide),
        attention_scale=1.0,
        embedding_scale=config.hidden_size**0.5,
        layer_input_size=size,
        layer_input_vocab=file.shapes.get("per_layer_token_embd.weight", (0,))[0] if size else 0,
        experts=experts(settled, file, n_layers, normalised=True),
    )


def _of_layers(fields: Fields, name: str, n_layers: int) -> list[int]:
    value = fields.get(name)
    if not is_array(value):
        return [fields.integer(name)] * n_layers
    if len(value) != n_layers:
        raise fields.bad(name, f"has {len(value)} numbers for {n_layers} layers")
    return [Fields({name: number}, fields.source).integer(name) for number in value]
