"""Models with experts and hybrids: logits against transformers, in float32."""

from __future__ import annotations

import pytest
import torch

from engine.config import EngineConfig
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from tests.engine.models import sparse, tiny
from tests.engine.models.test_families import PROMPTS
from tests.engine.runner.feeding import logits_of


@pytest.mark.parametrize("name", sparse.MODELS)
def test_logits_equal_those_of_transformers_whole_and_in_chunks(name, tmp_path) -> None:
    family, settings = sparse.MODELS[name]
    expected = tiny.logits(tiny.saved(tmp_path, family, **settings), PROMPTS)
    runner = ModelRunner(EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact"), open_checkpoint(tmp_path))
    for most in (64, 7):
        for ours, theirs in zip(logits_of(runner, PROMPTS, most=most), expected, strict=True):
            assert ours.dtype == torch.float32
            assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()
