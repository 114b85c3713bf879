"""A model's GGUF file gives the logits of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, quants

from engine.config import EngineConfig
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from tests.engine.models import tiny
from tests.engine.models.converted import ARCHITECTURES, to_gguf
from tests.engine.models.test_families import MODELS, PROMPTS
from tests.engine.runner.feeding import logits_of

Q8_0 = GGMLQuantizationType.Q8_0
NOT_IN_GGUF = {
    "mistral, window": "llama files have no windows",
    "qwen2, window on late layers": "qwen2 files have no windows",
    "gemma2": "has a scale of its own, which only the 27B's file implies",
    "gemma3": "has a scale of its own, which only the 27B's file implies",
    "gemma2, no soft caps": "files without soft caps have those of all Gemma 2",
    "gemma3, soft cap": "has the default scale of another head size",
    "smollm3, listed layers, windows": "files do not list layers",
    "starcoder2": "files have no window",
}


def _with_attention_factor(settings: dict[str, Any]) -> dict[str, Any]:
    rope = settings["rope_parameters"]
    return {**settings, "rope_parameters": {**rope, "full_attention": {**rope["full_attention"], "attention_factor": 1.7}}}


CASES = {
    **{name: model for name, model in MODELS.items() if model[0] in ARCHITECTURES and name not in NOT_IN_GGUF},
    "gemma2": ("gemma2", {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 9, "attn_logit_softcapping": 5.0}),
    "gemma3": ("gemma3_text", {"head_dim": 32, "num_hidden_layers": 7, "sliding_window": 9, "query_pre_attn_scalar": 32}),
    "starcoder2": ("starcoder2", {}),
    "olmo3, a factor of attention": ("olmo3", _with_attention_factor(MODELS["olmo3"][1])),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_of_a_gguf_file_equal_those_of_the_folder(name: str, tmp_path: Path) -> None:
    family, settings = CASES[name]
    to_gguf(tiny.saved(tmp_path / "folder", family, **settings), tmp_path / "model.gguf")
    _compare(tmp_path)


@pytest.mark.parametrize("name", ["llama", "phi3", "glm4", "cohere2", "starcoder2"])
def test_quantised_rows_are_joined_and_moved_as_those_of_the_folder(name: str, tmp_path: Path) -> None:
    family, settings = CASES[name]
    model = tiny.saved(tmp_path / "folder", family, **settings)
    with torch.no_grad():
        for matrix in (parameter for parameter in model.parameters() if parameter.dim() == 2):
            matrix.copy_(torch.from_numpy(quants.dequantize(quants.quantize(matrix.numpy(), Q8_0), Q8_0)))
    model.save_pretrained(tmp_path / "folder")
    to_gguf(model, tmp_path / "model.gguf", Q8_0)
    _compare(tmp_path)


def _compare(tmp_path: Path) -> None:
    config = EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact")
    of_folder, of_file = (
        logits_of(ModelRunner(config, open_checkpoint(tmp_path / path)), PROMPTS, most=64) for path in ("folder", "model.gguf")
    )
    for ours, theirs in zip(of_file, of_folder, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


def test_every_architecture_is_tried() -> None:
    assert {family for family, _ in CASES.values()} == set(ARCHITECTURES)
