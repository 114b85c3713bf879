"""Models that also see images answer to text as in transformers; the tensors of their image half are left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from tests.engine.models import tiny
from tests.engine.models.test_families import GEMMA4, PROMPTS
from tests.engine.runner.feeding import logits_of

_EYES = {"depth": 1, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 32, "num_heads": 2, "patch_size": 4}
_PIXTRAL = {
    **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16},
    **{"patch_size": 4, "head_dim": 16},
}
_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": ("qwen2_vl", _MROPE, {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4}, {}),
    "qwen2_5_vl, tied": ("qwen2_5_vl", _MROPE, {**_EYES, "fullatt_block_indexes": [0]}, {"tie_word_embeddings": True}),
    "qwen3_vl": ("qwen3_vl", {"head_dim": 16}, {**_EYES, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}, {}),
    "qwen3_vl_moe": (
        "qwen3_vl_moe",
        {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
        {**_EYES, "deepstack_visual_indexes": [0], "num_position_embeddings": 16},
        {},
    ),
    "qwen3_5_moe": (
        "qwen3_5_moe",
        {
            **{"head_dim": 32, "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
            **{"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 24},
            "shared_expert_intermediate_size": 32,
        },
        {**_EYES, "num_position_embeddings": 16},
        {},
    ),
    "gemma3": (
        "gemma3",
        {"head_dim": 16, "sliding_window": 9},
        {**_PIXTRAL, "image_size": 56, "patch_size": 14},
        {"mm_tokens_per_image": 4},
    ),
    "gemma4": (
        "gemma4",
        {**GEMMA4, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 99, "pad_token_id": 0},
        {**_PIXTRAL, "num_key_value_heads": 2, "position_embedding_size": 16},
        {"audio_config": None},
    ),
    "llama4": (
        "llama4",
        {
            **{"head_dim": 16, "attention_chunk_size": 9, "num_local_experts": 4, "intermediate_size_mlp": 80},
            **{"no_rope_layers": [], "no_rope_layer_interval": 2, "interleave_moe_layer_step": 2},
        },
        {
            **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16},
            **{"patch_size": 4, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
        },
        {"tie_word_embeddings": False},
    ),
    "mistral3, tied": ("mistral3", {"model_type": "mistral", "sliding_window": None}, _PIXTRAL, {}),
    "mistral3 of ministral3": (
        "mistral3",
        {"model_type": "ministral3", "head_dim": 16, "rope_parameters": {**_YARN, "llama_4_scaling_beta": 0.1}},
        _PIXTRAL,
        {"tie_word_embeddings": False},
    ),
}


def _saved(path: Path, name: str) -> transformers.PreTrainedModel:
    family, text, vision, settings = MODELS[name]
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(family, text_config={**tiny.SIZES, **text}, vision_config=vision, **settings)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    model.save_pretrained(path)
    return model


def _check(path: Path, expected: list[torch.Tensor]) -> None:
    checkpoint, theirs = open_checkpoint(path), transformers.AutoConfig.from_pretrained(path).get_text_config()
    assert checkpoint.config.windows == _windows(theirs)  # the prompts here are shorter than what is usual
    runner = ModelRunner(EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact"), checkpoint)
    for ours, theirs in zip(logits_of(runner, PROMPTS, most=64), expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()


def _windows(text: transformers.PreTrainedConfig) -> tuple[int, ...]:
    n_layers = text.num_hidden_layers
    of_kind = {
        "sliding_attention": getattr(text, "sliding_window", None) or 0,
        "chunked_attention": getattr(text, "attention_chunk_size", None) or 0,
    }
    return tuple(of_kind.get(kind, 0) for kind in getattr(text, "layer_types", None) or ["sliding_attention"] * n_layers)


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = _saved(tmp_path, name)
    # Around a text alone, transformers' Llama 4 asks its text half for what that does not return.
    oracle = model.language_model if name == "llama4" else model
    _check(tmp_path, tiny.logits(oracle, PROMPTS))


def test_an_older_file_has_the_texts_fields_among_those_of_the_whole(tmp_path: Path) -> None:
    expected = tiny.logits(_saved(tmp_path, "qwen2_vl"), PROMPTS)
    config = json.loads((tmp_path / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    text |= {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": rope["mrope_section"]}}
    (tmp_path / "config.json").write_text(json.dumps({**text, **config}))
    _check(tmp_path, expected)


def test_experts_that_lie_turned_are_told_by_their_sizes(tmp_path: Path) -> None:
    """As the first releases of Qwen3-VL have them."""
    expected = tiny.logits(_saved(tmp_path, "qwen3_vl_moe"), PROMPTS)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    _check(tmp_path, expected)
