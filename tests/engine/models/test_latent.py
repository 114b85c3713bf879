"""Attention over latents: what the cache has of a token, whole models recorded, checkpoints as DeepSeek publishes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from kernels.cpu import launch
from tests.engine.models import eight_bits, tiny
from tests.engine.models.test_families import EXPERTS, LATENT, MODELS, PROMPTS
from tests.engine.runner.feeding import logits_of

OURS = [name for name in MODELS if name.startswith(("deepseek", "gemma4", "glm4_moe_lite", "youtu"))]


def runner(folder: Path, **knobs) -> ModelRunner:
    return ModelRunner(EngineConfig(block_size=8, max_model_len=64, **knobs), open_checkpoint(folder))


@pytest.mark.skipif(launch.missing is not None, reason=str(launch.missing))
@pytest.mark.parametrize("name", OURS)
def test_steps_are_recorded(name: str, tmp_path: Path) -> None:
    """None computes with anything but native operators."""
    family, settings = MODELS[name]
    tiny.saved(tmp_path, family, **settings)
    assert runner(tmp_path).recorded is not None


@pytest.mark.parametrize(("kv_dtype", "n_bytes"), [("float16", 2 * 40), ("int8", 40 + 4)])
def test_a_token_has_one_latent_and_one_turned_key_in_a_layer(kv_dtype: str, n_bytes: int, tmp_path: Path) -> None:
    family, settings = MODELS["deepseek v3, latent queries"]
    expected = tiny.logits(tiny.saved(tmp_path, family, **settings), PROMPTS)
    ours = runner(tmp_path, kv_cache_dtype=kv_dtype)
    (group,) = ours.kv_groups
    assert group.block_bytes == 3 * 8 * n_bytes
    for got, theirs in zip(logits_of(ours, PROMPTS, most=7), expected, strict=True):
        assert (got - theirs).abs().max() < (0.005 if kv_dtype == "float16" else 0.05) * theirs.abs().max()


def test_checkpoints_in_fp8_have_the_logits_of_their_numbers(tmp_path: Path) -> None:
    sizes = {"q_lora_rank": 32, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "moe_intermediate_size": 32}
    settings = {**LATENT, **EXPERTS, **sizes, "qk_rope_head_dim": 32}
    model = eight_bits.saved(tmp_path, "deepseek_v3", **settings)
    ours = runner(tmp_path, kernel_precision="exact")
    assert ours.model.parameters()["model.layers.1.self_attn.q_b_proj.weight"].weight.qtype == "FP8"
    for got, theirs in zip(logits_of(ours, PROMPTS, most=64), tiny.logits(model, PROMPTS), strict=True):
        assert torch.isfinite(got).all() and (got - theirs).abs().max() < 1e-4 * theirs.abs().max()
