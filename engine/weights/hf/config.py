"""ModelConfig from Hugging Face's config.json, as transformers 4 and 5 write it: which reader a model type has.

Defaults of absent fields are those of the configuration classes of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf import (
    bamba,
    borrowed,
    cohere,
    deepseek,
    gemma,
    gemma4,
    glm,
    granite_hybrid,
    lfm2,
    llama,
    llama4,
    mixtures,
    olmo,
    phi3,
    qwen3_5,
    ungated,
)

READERS: dict[str, Callable[[Fields], ModelConfig]] = {
    "llama": llama.llama,
    "llama4_text": llama4.llama4,
    "mistral": llama.mistral,
    "ministral": llama.ministral,
    "ministral3": llama.ministral3,
    "qwen2": llama.qwen2,
    "qwen2_vl_text": llama.qwen2,
    "qwen2_5_vl_text": llama.qwen2,
    "qwen3": llama.qwen3,
    "qwen3_vl_text": llama.qwen3,
    "qwen3_5_text": qwen3_5.qwen3_5,
    "gemma": gemma.gemma,
    "gemma2": gemma.gemma2,
    "gemma3_text": gemma.gemma3,
    "gemma4_text": gemma4.gemma4,
    "phi3": phi3.phi3,
    "olmo2": olmo.olmo2,
    "olmo3": olmo.olmo3,
    "exaone4": olmo.exaone4,
    "smollm3": llama.smollm3,
    "granite": llama.granite,
    "seed_oss": llama.seed_oss,
    "ernie4_5": llama.ernie4_5,
    "arcee": ungated.arcee,
    "stablelm": ungated.stablelm,
    "starcoder2": ungated.starcoder2,
    "nemotron": ungated.nemotron,
    "cohere": cohere.cohere,
    "cohere2": cohere.cohere2,
    "glm": glm.glm,
    "glm4": glm.glm4,
    "bamba": bamba.bamba,
    "deepseek_v2": deepseek.deepseek_v2,
    "deepseek_v3": deepseek.deepseek_v3,
    "kimi_k2": deepseek.deepseek_v3,
    "glm4_moe_lite": deepseek.glm4_moe_lite,
    "youtu": deepseek.youtu,
    "mixtral": mixtures.mixtral,
    "qwen2_moe": mixtures.qwen2_moe,
    "qwen3_moe": mixtures.qwen3_moe,
    "qwen3_vl_moe_text": mixtures.qwen3_vl_moe,
    "gpt_oss": mixtures.gpt_oss,
    "glm4_moe": mixtures.glm4_moe,
    "ernie4_5_moe": mixtures.ernie4_5_moe,
    "qwen3_next": qwen3_5.qwen3_next,
    "qwen3_5_moe_text": qwen3_5.qwen3_5_moe,
    "lfm2": lfm2.lfm2,
    "lfm2_moe": lfm2.lfm2_moe,
    "granitemoehybrid": granite_hybrid.granitemoehybrid,
}
"""By model_type."""

TEXT_HALVES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "gemma3": ("gemma3_text", gemma.GEMMA3_TEXT),
    "gemma4": ("gemma4_text", gemma4.TEXT),
    "qwen3_5": ("qwen3_5_text", qwen3_5.TEXT),
    "qwen3_5_moe": ("qwen3_5_moe_text", qwen3_5.MOE_TEXT),
    "qwen2_vl": ("qwen2_vl_text", llama.QWEN2_VL_TEXT),
    "qwen2_5_vl": ("qwen2_5_vl_text", llama.QWEN2_VL_TEXT),
    "qwen3_vl_moe": ("qwen3_vl_moe_text", mixtures.QWEN3_VL_MOE_TEXT),
    "qwen3_vl": ("qwen3_vl_text", llama.QWEN3_VL_TEXT),
    "mistral3": ("mistral", {}),
    "llama4": ("llama4_text", {}),
}
"""Models that also see images -> the type of their text half, and what it has where its configuration is silent."""


def from_hf(config: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """Raises ModelLoadError, naming `source` and the field, for a family or a value that cannot be served."""
    fields = Fields(config, source)
    model_type = fields.text("model_type")
    if model_type in TEXT_HALVES:
        return from_hf(_text_config(fields, model_type), f"{source}: text_config")
    return READERS.get(model_type, borrowed.borrowed)(fields)


def _text_config(fields: Fields, model_type: str) -> Mapping[str, Any]:
    text = fields.section("text_config").values
    if not text and model_type in ("qwen2_vl", "qwen2_5_vl"):  # older files have its fields among those of the whole
        text = {name: value for name, value in fields.values.items() if name not in ("model_type", "vision_config")}
    if not text:
        raise fields.bad("text_config", "is missing")
    if text.get("model_type") == model_type:
        raise fields.bad("text_config", "is a model with images again, instead of the text half of this one")
    text_type, defaults = TEXT_HALVES[model_type]
    tied = {"tie_word_embeddings": True} if fields.flag("tie_word_embeddings", False) else {}  # the whole model's wins
    usual = {"model_type": text_type, **defaults}
    # Where the half has a default of its own null means that; elsewhere it may say that there is none, as of a window.
    given = {name: value for name, value in text.items() if value is not None or name not in usual}
    return {**usual, **given, **tied}
