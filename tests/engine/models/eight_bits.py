"""Tiny checkpoints in FP8, with a scale for each block of 32 rows and columns, as DeepSeek-V3's have them of 128."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.engine.models import tiny

BLOCK = 32
_KEPT = re.compile(r".*(\.mlp\.gate|embed_\w+|lm_head)\.weight")


def saved(path: Path, family: str, **settings: Any) -> transformers.PreTrainedModel:
    """A model with the numbers that the checkpoint in `path` stands for. Sizes are multiples of 32."""
    tiny.saved(path, family, **settings)
    tensors = load_file(path / "model.safetensors")
    dense, stored = dict(tensors), dict(tensors)
    for name, values in tensors.items():
        if values.dim() != 2 or _KEPT.fullmatch(name):
            continue
        blocks = values.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
        scales = blocks.abs().amax((1, 3)) / 448
        narrow = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
        dense[name] = (narrow.float() * scales[:, None, :, None]).reshape(values.shape)
        stored |= {name: narrow.reshape(values.shape), f"{name}_scale_inv": scales}
    save_file(dense, path / "model.safetensors", {"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    save_file(stored, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}
    (path / "config.json").write_text(json.dumps(config))
    return model
