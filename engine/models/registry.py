"""Which family's file builds a model."""

from __future__ import annotations

from engine.errors import ModelLoadError
from engine.models import (
    arcee,
    bamba,
    cohere,
    deepseek,
    exaone4,
    gemma3,
    gemma4,
    glm4,
    granite,
    granitemoehybrid,
    lfm2,
    llama,
    llama4,
    mistral,
    mixture,
    nemotron,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen3_5,
    stablelm,
    starcoder2,
    transformers_fallback,
)
from engine.models.decoder import Decoder
from engine.models.operators import Operators
from engine.weights.config import ModelConfig

FAMILIES = {
    "llama": llama.build,
    "llama4": llama4.build,
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
    "qwen3_5": qwen3_5.build,
    "gemma": gemma3.build,
    "gemma2": gemma3.build,
    "gemma3": gemma3.build,
    "gemma4": gemma4.build,
    "mistral": mistral.build,
    "phi3": phi3.build,
    "olmo2": olmo2.build,
    "smollm3": llama.build,
    "granite": granite.build,
    "seed_oss": llama.build,
    "ernie4_5": llama.build,
    "arcee": arcee.build,
    "stablelm": stablelm.build,
    "starcoder2": starcoder2.build,
    "cohere": cohere.build,
    "cohere2": cohere.build,
    "glm": glm4.build,
    "glm4": glm4.build,
    "exaone4": exaone4.build,
    "nemotron": nemotron.build,
    "bamba": bamba.build,
    "deepseek": deepseek.build,
    "mixtral": mixture.build,
    "qwen2_moe": mixture.build,
    "qwen3_moe": mixture.build,
    "gpt_oss": mixture.build,
    "glm4_moe": mixture.build,
    "ernie4_5_moe": mixture.build,
    "qwen3_next": qwen3_5.build,
    "lfm2": lfm2.build,
    "granitemoehybrid": granitemoehybrid.build,
}


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    """A model without weights, its operators resolved and its rotary tables made for max_model_len positions.

    Raises ModelLoadError for an unknown family, KernelMissing where an operator has no implementation.
    """
    if config.borrowed is not None:
        return transformers_fallback.BorrowedDecoder(config, ops, max_model_len)
    if config.family not in FAMILIES:
        raise ModelLoadError(
            f"The model is of the family '{config.family}', which cannot be run.", f"Known families: {', '.join(FAMILIES)}."
        )
    return FAMILIES[config.family](config, ops, max_model_len)
