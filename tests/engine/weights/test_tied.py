"""An output matrix that a configuration calls tied, and that the files have too: as transformers takes it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from tests.engine.models import tiny
from tests.engine.models.test_families import PROMPTS
from tests.engine.runner.feeding import logits_of


@pytest.mark.parametrize("head", ["the same", "another", "another type"])
def test_a_head_of_its_own_is_taken_whatever_the_configuration_says(head: str, tmp_path: Path) -> None:
    tiny.saved(tmp_path, "llama", tie_word_embeddings=True)
    tensors = load_file(tmp_path / "model.safetensors")
    matrix = tensors["model.embed_tokens.weight"].clone()
    if head == "another":
        matrix[5:] += 0.5
    tensors["lm_head.weight"] = matrix.bfloat16() if head == "another type" else matrix
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.tie_embeddings == (head == "the same")
    expected = tiny.logits(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), PROMPTS)
    runner = ModelRunner(EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact"), checkpoint)
    for ours, theirs in zip(logits_of(runner, PROMPTS, most=64), expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()
