"""Tiny random models of transformers' own classes, whose every part matters to the logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.qwen3_5 import modeling_qwen3_5

SIZES = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
}


def configured(family: str, **settings: Any) -> transformers.PreTrainedConfig:
    return transformers.AutoConfig.for_model(family, **{**SIZES, **settings})


def saved(path: Path, family: str, **settings: Any) -> transformers.PreTrainedModel:
    """A model in float32, the same each time, saved into `path` as a folder of config.json and safetensors."""
    torch.manual_seed(7)
    config = configured(family, **settings)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            # Wide enough for attention to be far from even, and for biases and norm weights to be felt.
            parameter.add_(torch.randn(parameter.shape, generator=generator) * (0.2 if parameter.dim() == 2 else 0.3))
        for name, buffer in model.named_buffers():
            if name.endswith(("bias", "layer_scalar")):  # by which experts are chosen, and gemma4's layers end
                buffer.add_(torch.randn(buffer.shape, generator=generator) * 0.3)
    model.save_pretrained(path)
    return model


# Of transformers' two forms the one in chunks is off by a thousandth on these sizes, measured against the other one.
modeling_qwen3_5.torch_chunk_gated_delta_rule = modeling_qwen3_5.torch_recurrent_gated_delta_rule


def logits(model: transformers.PreTrainedModel, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Of every position of each prompt, each prompt alone and whole; float32 [tokens, vocabulary]."""
    with torch.no_grad():
        return [model(torch.tensor([prompt])).logits[0] for prompt in prompts]
