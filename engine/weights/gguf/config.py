"""ModelConfig from a GGUF's metadata (keys as in gguf's constants.py; meaning as in llama.cpp's llama-model.cpp)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.errors import ModelLoadError
from engine.weights.config import ModelConfig, RopeConfig
from engine.weights.fields import Fields
from engine.weights.gguf import experts, gemma4, latent, llama4
from engine.weights.gguf.plain import Described, pattern_windows, plain


def llama(fields: Fields, file: Described) -> ModelConfig:
    """Mistral's models too are "llama" in GGUF."""
    return experts.mixtral(fields, file) if fields.get("expert_count", 0) else plain(fields, file, "llama")


def mistral3(fields: Fields, file: Described) -> ModelConfig:
    beta = fields.number("attention.temperature_scale", 0.0, positive=False)
    config = plain(fields, file, "mistral")
    period = fields.integer("rope.scaling.original_context_length", config.max_position)
    return replace(config, query_growth=(beta, period) if beta else None)


def qwen2(fields: Fields, file: Described) -> ModelConfig:
    return plain(fields, file, "qwen2")


def qwen3(fields: Fields, file: Described) -> ModelConfig:
    return plain(fields, file, "qwen3")


def smollm3(fields: Fields, file: Described) -> ModelConfig:
    """The file does not say that every fourth layer is not turned."""
    config = plain(fields, file, "smollm3")
    return replace(config, ropes=tuple(rope if (i + 1) % 4 else None for i, rope in enumerate(config.ropes)))


def granite(fields: Fields, file: Described) -> ModelConfig:
    config = plain(fields, file, "granite")
    return replace(
        config,
        attention_scale=fields.number("attention.scale", config.attention_scale),
        embedding_scale=fields.number("embedding_scale", 1.0),
        residual_scale=fields.number("residual_scale", 1.0),
        logit_scale=1 / fields.number("logit_scale", 1.0),
    )


def phi3(fields: Fields, file: Described) -> ModelConfig:
    """A window of 0 means that there is none."""
    config = plain(fields, file, "phi3")
    return replace(config, windows=(fields.integer("attention.sliding_window", 0, low=0),) * config.n_layers)


def olmo2(fields: Fields, file: Described) -> ModelConfig:
    """Olmo 3 too, which has windows; scaling of its rope is of the layers without. What files call attn_factor is all of the
    factor of cos and sin, and not, as elsewhere, what that of yarn is multiplied by.
    """
    config = plain(fields, file, "olmo2")
    whole, (rope, *_) = fields.number("rope.scaling.attn_factor", None), config.ropes
    if whole is not None and rope.scaling == "yarn":
        rope = replace(rope, params={**rope.params, "attention_factor": whole})
        config = replace(config, ropes=(rope,) * config.n_layers)
    if not fields.get("attention.sliding_window", 0):
        return config
    windows = pattern_windows(fields, config.n_layers, 4)
    ropes = zip(windows, config.ropes, strict=True)
    local = RopeConfig(config.ropes[0].theta, config.ropes[0].rotary_dim)
    return replace(config, windows=windows, ropes=tuple(local if window else rope for window, rope in ropes))


def exaone4(fields: Fields, file: Described) -> ModelConfig:
    """Of a model with windows, layers without are not turned."""
    config = plain(fields, file, "exaone4")
    return _turned_in_windows(fields, config) if fields.get("attention.sliding_window", 0) else config


def cohere(fields: Fields, file: Described) -> ModelConfig:
    config = plain(fields, file, "cohere", eps="attention.layer_norm_epsilon")
    head_norms = "blk.0.attn_q_norm.weight" in file.shapes
    return replace(config, head_norms=head_norms, logit_scale=fields.number("logit_scale"))


def cohere2(fields: Fields, file: Described) -> ModelConfig:
    config = plain(fields, file, "cohere2", eps="attention.layer_norm_epsilon")
    return _turned_in_windows(fields, replace(config, logit_scale=fields.number("logit_scale")))


def _turned_in_windows(fields: Fields, config: ModelConfig) -> ModelConfig:
    windows = pattern_windows(fields, config.n_layers, 4)
    ropes = tuple(rope if window else None for rope, window in zip(config.ropes, windows, strict=True))
    return replace(config, windows=windows, ropes=ropes)


def glm4(fields: Fields, file: Described) -> ModelConfig:
    if fields.get("rope.dimension_sections", None):
        what = "is there: the model sees images, and its q and k are in another order"
        raise fields.bad("rope.dimension_sections", what, "Take a GLM-4 model of text.")
    return plain(fields, file, "glm4")


def starcoder2(fields: Fields, file: Described) -> ModelConfig:
    return plain(fields, file, "starcoder2", eps="attention.layer_norm_epsilon", activation="gelu_tanh")


def nemotron(fields: Fields, file: Described) -> ModelConfig:
    return plain(fields, file, "nemotron", eps="attention.layer_norm_epsilon", activation="relu_squared")


def seed_oss(fields: Fields, file: Described) -> ModelConfig:
    return plain(fields, file, "seed_oss")


def ernie4_5(fields: Fields, file: Described) -> ModelConfig:
    return plain(fields, file, "ernie4_5")


def arcee(fields: Fields, file: Described) -> ModelConfig:
    return plain(fields, file, "arcee", activation="relu_squared")


def stablelm(fields: Fields, file: Described) -> ModelConfig:
    if fields.flag("use_parallel_residual", False):
        what = "is true, which of Stable LM models is not supported"
        raise fields.bad("use_parallel_residual", what, "Take Stable LM 2 1.6B or another model.")
    return plain(fields, file, "stablelm", eps="attention.layer_norm_epsilon")


def gemma(fields: Fields, file: Described) -> ModelConfig:
    config = plain(fields, file, "gemma", activation="gelu_tanh")
    return replace(config, embedding_scale=config.hidden_size**0.5)


def gemma2(fields: Fields, file: Described) -> ModelConfig:
    """Soft caps and window that a file does not have are those of all Gemma 2 models, as llama.cpp takes them."""
    config = _gemma(plain(fields, file, "gemma2", activation="gelu_tanh"), n_layers_of_27b=46)
    return replace(
        config,
        windows=pattern_windows(fields, config.n_layers, 2, default=4096),
        attn_soft_cap=fields.number("attn_logit_softcapping", 50.0),
        logit_soft_cap=fields.number("final_logit_softcapping", 30.0),
    )


def gemma3(fields: Fields, file: Described) -> ModelConfig:
    config = plain(fields, file, "gemma3", theta=1_000_000.0, activation="gelu_tanh")
    local = RopeConfig(fields.number("rope.freq_base_swa", 10_000.0), config.head_dim)
    windows = pattern_windows(fields, config.n_layers, 6)
    ropes = tuple(local if window else rope for window, rope in zip(windows, config.ropes, strict=True))
    return replace(_gemma(config, n_layers_of_27b=62), ropes=ropes, windows=windows)


def _gemma(config: ModelConfig, *, n_layers_of_27b: int) -> ModelConfig:
    # GGUF has no query_pre_attn_scalar. It is the head size in every model but the 27B, as llama.cpp knows too.
    scalar = config.hidden_size / config.n_heads if config.n_layers == n_layers_of_27b else config.head_dim
    return replace(config, attention_scale=scalar**-0.5, embedding_scale=config.hidden_size**0.5)


READERS: dict[str, Callable[[Fields, Described], ModelConfig]] = {
    "llama": llama,
    "llama4": llama4.llama4,
    "mistral3": mistral3,
    "qwen2": qwen2,
    "qwen2vl": qwen2,
    "qwen3": qwen3,
    "qwen3vl": qwen3,
    "smollm3": smollm3,
    "granite": granite,
    "phi3": phi3,
    "olmo2": olmo2,
    "exaone4": exaone4,
    "command-r": cohere,
    "cohere2": cohere2,
    "glm4": glm4,
    "starcoder2": starcoder2,
    "nemotron": nemotron,
    "seed_oss": seed_oss,
    "ernie4_5": ernie4_5,
    "arcee": arcee,
    "stablelm": stablelm,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gemma4": gemma4.gemma4,
    "deepseek2": latent.deepseek2,
    "qwen2moe": experts.qwen2moe,
    "qwen3moe": experts.qwen3moe,
    "qwen3vlmoe": experts.qwen3moe,
    "qwen3next": experts.qwen3next,
    "qwen35": experts.qwen35,
    "qwen35moe": experts.qwen35,
    "gpt-oss": experts.gpt_oss,
    "glm4moe": experts.glm4moe,
    "ernie4_5-moe": experts.ernie4_5_moe,
    "lfm2": experts.lfm2,
    "lfm2moe": experts.lfm2,
    "granitehybrid": experts.granitehybrid,
}
"""By general.architecture."""


def from_gguf(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    rope_factors: tuple[float, ...] | None = None,
    source: str = "GGUF",
    longrope_factors: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> ModelConfig:
    """shapes: of the file's tensors by their GGUF names, rows first. rope_factors: the rope_freqs tensor, if there is one;
    longrope_factors: rope_factors_short and rope_factors_long.

    Raises ModelLoadError, naming `source` and the field, for an architecture or a value that cannot be served.
    """
    architecture = Fields(metadata, source).text("general.architecture")
    if architecture not in READERS:
        hint = f"Supported: {', '.join(READERS)}."
        raise ModelLoadError(f"{source}: models of architecture {architecture} are not supported.", hint)
    return READERS[architecture](Fields(metadata, source, f"{architecture}."), Described(shapes, rope_factors, longrope_factors))
