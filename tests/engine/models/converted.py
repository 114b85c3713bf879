"""GGUF files of tiny models, by the gguf package's own writer and tensor names.

What the values and the metadata become is what the classes of llama.cpp's convert_hf_to_gguf.py make of them, which the package
does not contain: LlamaModel (permute, generate_extra_tensors) and, named after the models, one for each of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import PreTrainedModel

_PERMUTED = {"llama", "mistral", "ministral3", "smollm3", "granite", "arcee"}
_PLUS_ONE = {"gemma", "gemma2", "gemma3_text", "nemotron"}
ARCHITECTURES = {
    **{name: name for name in ("llama", "qwen2", "qwen3", "gemma2", "phi3", "olmo2", "smollm3", "granite", "starcoder2")},
    **{name: name for name in ("cohere2", "glm4", "exaone4", "nemotron", "gemma", "seed_oss", "ernie4_5", "arcee")},
    "stablelm": "stablelm",
    **{"mistral": "llama", "ministral3": "mistral3", "gemma3_text": "gemma3", "olmo3": "olmo2", "cohere": "command-r"},
}
"""By model_type."""


def to_gguf(model: PreTrainedModel, path: Path, qtype: gguf.GGMLQuantizationType | None = None) -> None:
    """qtype: of matrices."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    _describe(writer, config)
    known = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    for name, values in _tensors(model):
        data, raw = values.contiguous().numpy(), None
        if qtype is not None and data.ndim == 2:
            data, raw = gguf.quants.quantize(data, qtype), qtype
        writer.add_tensor(names.get_name(name, (".weight", ".bias")) or name, data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, config: Any) -> None:
    """What most models have."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * (rope.get("partial_rotary_factor") or 1)))
    if hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name in ("layer_norm_eps", "norm_epsilon", "norm_eps"):
        if hasattr(config, name):
            writer.add_layer_norm_eps(getattr(config, name))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    _OF_FAMILY.get(config.model_type, lambda *_: None)(writer, config)


def _windows(writer: gguf.GGUFWriter, config: Any) -> None:
    if config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])


def _olmo3(writer: gguf.GGUFWriter, config: Any) -> None:
    _windows(writer, config)
    if factor := config.rope_parameters["full_attention"].get("attention_factor"):
        writer.add_rope_scaling_attn_factors(factor)


def _gemma2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _gemma3(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config.sliding_window)


def _ministral3(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def _phi3(writer: gguf.GGUFWriter, config: Any) -> None:
    original = config.original_max_position_embeddings
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_sliding_window(config.sliding_window or 0)
    if config.rope_parameters["rope_type"] == "longrope":
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0)


def _granite(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def _cohere(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_logit_scale(config.logit_scale)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def _cohere2(writer: gguf.GGUFWriter, config: Any) -> None:
    _cohere(writer, config)
    writer.add_sliding_window(config.sliding_window)


_OF_FAMILY: dict[str, Callable[[gguf.GGUFWriter, Any], None]] = {
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "ministral3": _ministral3,
    "phi3": _phi3,
    "olmo3": _olmo3,
    "exaone4": _windows,
    "granite": _granite,
    "cohere": _cohere,
    "cohere2": _cohere2,
}


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Name in transformers, or in GGUF where it has none there -> values as converted."""
    config = model.config
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads and config.model_type in _PERMUTED:
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if config.model_type in _PLUS_ONE and name.endswith("norm.weight"):
            values = values + 1
        yield name, values
    rope = config.rope_parameters
    if rope.get("rope_type") == "llama3":
        yield "rope_freqs.weight", _llama3_factors(rope, config.hidden_size // config.num_attention_heads)
    for kind in ("short", "long"):
        if factors := rope.get(f"{kind}_factor"):
            yield f"rope_factors_{kind}.weight", torch.tensor(factors)


def _llama3_factors(rope: dict[str, Any], head_dim: int) -> Tensor:
    factors, original = [], rope["original_max_position_embeddings"]
    for i in range(0, head_dim, 2):
        turns = original / (2 * math.pi * rope["rope_theta"] ** (i / head_dim))  # within the window of the training
        stretch = max(rope["high_freq_factor"] - rope["low_freq_factor"], 1e-9)  # none in Llama 4
        smooth = (turns - rope["low_freq_factor"]) / stretch
        smooth = min(max(smooth, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return torch.tensor(factors)
