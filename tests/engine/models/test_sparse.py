"""Models with experts and hybrids: logits against transformers, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from kernels.cpu import launch
from tests.engine.models import sparse, test_families, tiny
from tests.engine.models.converted_sparse import ARCHITECTURES, to_gguf
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


@pytest.mark.skipif(launch.missing is not None, reason=f"no native operators: {launch.missing}")
@pytest.mark.parametrize("name", sparse.MODELS)
def test_steps_are_recorded_as_a_whole_and_give_the_same_bits(name: str, tmp_path: Path) -> None:
    """With activations in 8 bits where weights allow it, as a model is served."""
    family, settings = sparse.MODELS[name]
    tiny.saved(tmp_path, family, **settings)
    recorded, eager = (
        ModelRunner(EngineConfig(block_size=8, max_model_len=64, enforce_eager=eager), open_checkpoint(tmp_path))
        for eager in (False, True)
    )
    assert recorded.recorded is not None and eager.recorded is None
    for ours, theirs in zip(logits_of(recorded, PROMPTS, most=7), logits_of(eager, PROMPTS, most=64), strict=True):
        assert torch.equal(ours, theirs)


_LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
    "original_max_position_embeddings": 32,
}
"""As Llama 4 Scout has it, without a stretch between what is stretched and what is not."""

NOT_IN_GGUF = {
    "mixtral, window": "llama files have no windows",
    "qwen2_moe, some layers, normalised": "qwen2moe files do not say that gains are normalised",
    "qwen3_moe, every other layer": "qwen3moe files do not say that gains are not normalised",
    "lfm2_moe, scaled, without a bias": "lfm2moe files have no factor",
    "llama4": "chunks of llama4 files are of 8192 tokens",
    "llama4, two experts of a token, neither norms nor growth": "chunks of llama4 files are of 8192 tokens",
    "llama4 without experts, all seen": "llama4 files do not say that all layers are turned",
}
IN_GGUF = {
    **{name: model for name, model in sparse.MODELS.items() if name not in NOT_IN_GGUF},
    "qwen3_5": test_families.MODELS["qwen3_5"],
    "llama4, as files have it": (
        "llama4_text",
        {
            **{"num_hidden_layers": 5, "head_dim": 16, "num_local_experts": 6, "interleave_moe_layer_step": 2},
            **{"intermediate_size_mlp": 80, "rope_parameters": _LLAMA3},
        },
    ),
    "granitemoehybrid, no experts": (
        "granitemoehybrid",
        {**sparse.MODELS["granitemoehybrid"][1], "num_local_experts": 0},
    ),
}


@pytest.mark.parametrize("name", IN_GGUF)
def test_logits_of_a_gguf_file_equal_those_of_the_folder(name: str, tmp_path: Path) -> None:
    family, settings = IN_GGUF[name]
    to_gguf(tmp_path / "folder", tiny.saved(tmp_path / "folder", family, **settings).config, tmp_path / "model.gguf")
    config = EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact")
    of_folder, of_file = (
        logits_of(ModelRunner(config, open_checkpoint(tmp_path / path)), PROMPTS, most=64) for path in ("folder", "model.gguf")
    )
    for ours, theirs in zip(of_file, of_folder, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-4 * float(theirs.abs().max()))


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_moe"])
def test_gate_and_up_of_all_experts_may_be_one_tensor_of_a_gguf_file(name: str, tmp_path: Path) -> None:
    family, settings = IN_GGUF[name]
    config = tiny.saved(tmp_path / "folder", family, **settings).config
    for fused in (False, True):
        to_gguf(tmp_path / "folder", config, tmp_path / f"{fused}.gguf", fused=fused)
    apart, together = (open_checkpoint(tmp_path / f"{fused}.gguf") for fused in (False, True))
    assert any("gate_up" in stored for stored in together.stored.names()) and apart.names() != together.stored.names()
    for name in (name for name in apart.names() if ".experts." in name):
        assert torch.equal(apart.weight(name).data, together.weight(name).data)
    assert set(apart.names()) == set(together.names())


SILENT = {
    "glm4_moe": ("expert_gating_func", "leading_dense_block_count", "expert_shared_count", "attention.value_length"),
    "lfm2_moe": ("expert_gating_func", "leading_dense_block_count"),
    "granitemoehybrid, no experts, turned": ("rope.scaling.finetuned",),
    "gpt_oss": ("attention.value_length",),
    "mixtral": ("attention.key_length", "attention.value_length", "rope.dimension_count"),
}
"""Case -> keys that some files do not have."""


@pytest.mark.parametrize("name", SILENT)
def test_what_a_file_does_not_say_is_what_its_tensors_or_all_models_of_the_kind_have(name: str, tmp_path: Path) -> None:
    family, settings = IN_GGUF[name]
    config = tiny.saved(tmp_path / "folder", family, **settings).config
    for file, silent in (("whole", ()), ("silent", SILENT[name])):
        to_gguf(tmp_path / "folder", config, tmp_path / f"{file}.gguf", silent=silent)
    assert open_checkpoint(tmp_path / "silent.gguf").config == open_checkpoint(tmp_path / "whole.gguf").config


def test_every_architecture_is_tried() -> None:
    assert {family for family, _ in IN_GGUF.values()} == set(ARCHITECTURES)
