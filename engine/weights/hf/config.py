"""ModelConfig from Hugging Face's config.json, as transformers 4 and 5 write it: which reader a model type has.

Defaults of absent fields are those of the configuration classes of transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import ModelLoadError
from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.hf import bamba, gemma, llama, qwen3_5

READERS: dict[str, Callable[[Fields], ModelConfig]] = {
    "llama": llama.llama,
    "mistral": llama.mistral,
    "qwen2": llama.qwen2,
    "qwen3": llama.qwen3,
    "qwen3_5_text": qwen3_5.qwen3_5,
    "gemma3_text": gemma.gemma3,
    "bamba": bamba.bamba,
}
"""By model_type."""

TEXT_HALVES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "gemma3": ("gemma3_text", gemma.GEMMA3_TEXT),
    "qwen3_5": ("qwen3_5_text", qwen3_5.TEXT),
}
"""Models that also see images -> the type of their text half, and what it has where its configuration is silent."""


def from_hf(config: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """Raises ModelLoadError, naming `source` and the field, for a family or a value that cannot be served."""
    fields = Fields(config, source)
    model_type = fields.text("model_type")
    if model_type in TEXT_HALVES:
        return from_hf(_text_config(fields, model_type), f"{source}: text_config")
    if model_type not in READERS:
        raise ModelLoadError(
            f"{source}: models of type {model_type} are not supported.", f"Supported: {', '.join((*READERS, *TEXT_HALVES))}."
        )
    if fields.get("quantization_config", None):
        raise ModelLoadError(
            f"{source}: this checkpoint is quantised ({fields.section('quantization_config').get('quant_method', 'unknown')}).",
            "Take the model in float16 or bfloat16, or as a GGUF file.",
        )
    return READERS[model_type](fields)


def _text_config(fields: Fields, model_type: str) -> Mapping[str, Any]:
    text = fields.section("text_config").values
    if not text:
        raise fields.bad("text_config", "is missing")
    if text.get("model_type") == model_type:
        raise fields.bad("text_config", "is a model with images again, instead of the text half of this one")
    text_type, defaults = TEXT_HALVES[model_type]
    return {"model_type": text_type, **defaults, **{name: value for name, value in text.items() if value is not None}}
