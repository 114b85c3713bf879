"""ModelConfig from a GGUF's metadata (keys as in gguf's constants.py; meaning as in llama.cpp's llama-model.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.errors import ModelLoadError
from engine.weights.config import ModelConfig, RopeConfig
from engine.weights.fields import Fields
from engine.weights.gguf.plain import Described, pattern_windows, plain


def llama(fields: Fields, file: Described) -> ModelConfig:
    """Mistral's models too are "llama" in GGUF."""
    return plain(fields, file, "llama")


def qwen2(fields: Fields, file: Described) -> ModelConfig:
    return plain(fields, file, "qwen2")


def qwen3(fields: Fields, file: Described) -> ModelConfig:
    return plain(fields, file, "qwen3")


def gemma3(fields: Fields, file: Described) -> ModelConfig:
    config = plain(fields, file, "gemma3", theta=1_000_000.0)
    local = RopeConfig(fields.number("rope.freq_base_swa", 10_000.0), config.head_dim)
    windows = pattern_windows(fields, config.n_layers, 6)
    # GGUF has no query_pre_attn_scalar. It is the head size in every gemma3 but the 27B (62 layers), as llama.cpp knows too.
    scalar = config.hidden_size / config.n_heads if config.n_layers == 62 else config.head_dim
    return replace(
        config,
        ropes=tuple(local if window else rope for window, rope in zip(windows, config.ropes, strict=True)),
        windows=windows,
        attention_scale=scalar**-0.5,
        embedding_scale=config.hidden_size**0.5,
        activation="gelu_tanh",
    )


READERS: dict[str, Callable[[Fields, Described], ModelConfig]] = {
    "llama": llama,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma3": gemma3,
}
"""By general.architecture."""


def from_gguf(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    rope_factors: tuple[float, ...] | None = None,
    source: str = "GGUF",
) -> ModelConfig:
    """shapes: of the file's tensors by their GGUF names, rows first. rope_factors: the rope_freqs tensor, if there is one.

    Raises ModelLoadError, naming `source` and the field, for an architecture or a value that cannot be served.
    """
    architecture = Fields(metadata, source).text("general.architecture")
    if architecture not in READERS:
        hint = f"Supported: {', '.join(READERS)}."
        raise ModelLoadError(f"{source}: models of architecture {architecture} are not supported.", hint)
    return READERS[architecture](Fields(metadata, source, f"{architecture}."), Described(shapes, rope_factors))
