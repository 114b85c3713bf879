"""GGUF files of DeepSeek and Gemma 4 models give the logits of their folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, quants

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from tests.engine.models import tiny
from tests.engine.models.converted_latent import ARCHITECTURES, to_gguf
from tests.engine.models.test_families import LATENT, MODELS, PROMPTS, YARN
from tests.engine.runner.feeding import logits_of

Q8_0 = GGMLQuantizationType.Q8_0
NOT_IN_GGUF = {
    "deepseek v2, plain queries, biases": "files have no biases",
    "deepseek v3, plain queries, biases": "files have no biases",
    "deepseek v2, yarn": "has two mscales, of which files have one",
    "deepseek v3, yarn": "has two mscales, of which files have one",
    "deepseek v3, turned by halves": "files are interleaved",
}
ONE_SCALE = {**LATENT, "q_lora_rank": None, "rope_parameters": {**YARN, "mscale": 1.3}}
CASES = {
    **{name: model for name, model in MODELS.items() if model[0] in ARCHITECTURES and name not in NOT_IN_GGUF},
    "deepseek v2, yarn": ("deepseek_v2", ONE_SCALE),
    "deepseek v3, yarn": ("deepseek_v3", ONE_SCALE),
}
SILENT = {
    "deepseek v2, experts": ("expert_gating_func", "expert_weights_norm", "expert_shared_count"),
    "deepseek v3, experts": ("expert_gating_func", "expert_shared_count"),
    "glm4_moe_lite": ("expert_gating_func", "leading_dense_block_count"),
}
"""Case -> keys that older files do not have."""


@pytest.mark.parametrize(
    ("name", "in_two"), [(name, in_two) for name in CASES for in_two in ((True, False) if "deepseek" in name else (True,))]
)
def test_logits_of_a_gguf_file_equal_those_of_the_folder(name: str, in_two: bool, tmp_path: Path) -> None:
    family, settings = CASES[name]
    model = tiny.saved(tmp_path / "folder", family, **settings)
    to_gguf(tmp_path / "folder", model.config, tmp_path / "model.gguf", in_two=in_two)
    config = EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact")
    of_folder, of_file = (
        logits_of(ModelRunner(config, open_checkpoint(tmp_path / path)), PROMPTS, most=64) for path in ("folder", "model.gguf")
    )
    for ours, theirs in zip(of_file, of_folder, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("name", SILENT)
def test_what_a_file_does_not_say_is_what_its_tensors_tell(name: str, tmp_path: Path) -> None:
    family, settings = CASES[name]
    model = tiny.saved(tmp_path / "folder", family, **settings)
    for file, silent in (("whole", ()), ("silent", SILENT[name])):
        to_gguf(tmp_path / "folder", model.config, tmp_path / f"{file}.gguf", silent=silent)
    assert open_checkpoint(tmp_path / "silent.gguf").config == open_checkpoint(tmp_path / "whole.gguf").config


def test_every_model_type_is_tried() -> None:
    assert {family for family, _ in CASES.values()} == set(ARCHITECTURES)


def test_quantised_matrices_are_used_as_they_are_but_for_those_of_heads_which_memory_counts(tmp_path: Path) -> None:
    """Rows of a head move, and rows become columns, of what the file's types hold."""
    sizes = {"q_lora_rank": 32, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "intermediate_size": 96}
    model = tiny.saved(tmp_path / "folder", "deepseek_v3", **{**LATENT, **sizes})
    with torch.no_grad():
        for matrix in (parameter for parameter in model.parameters() if parameter.dim() == 2):
            matrix.copy_(torch.from_numpy(quants.dequantize(quants.quantize(matrix.numpy(), Q8_0), Q8_0)))
    model.save_pretrained(tmp_path / "folder")
    to_gguf(tmp_path / "folder", model.config, tmp_path / "model.gguf", in_two=False, qtype=Q8_0)
    config = EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact")
    folder, file = (ModelRunner(config, open_checkpoint(tmp_path / path)) for path in ("folder", "model.gguf"))
    for ours, theirs in zip(*(logits_of(runner, PROMPTS, most=64) for runner in (file, folder)), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))
    n = 3 * 4 * (32 + 32) * 64
    assert file.weights_bytes == open_checkpoint(tmp_path / "model.gguf").n_bytes + 4 * n - n // 32 * 34
    assert folder.weights_bytes == open_checkpoint(tmp_path / "folder").n_bytes


def test_keys_of_layers_that_read_those_of_others_are_left_out(tmp_path: Path) -> None:
    """Published files have them, transformers does not write them."""
    from safetensors.torch import load_file, save_file

    family, settings = MODELS["gemma4, an embedding for each layer, shared keys"]
    tiny.saved(tmp_path, family, **settings)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.4.self_attn.k_proj.weight"] = torch.ones(32, 64)
    tensors["model.layers.4.self_attn.k_norm.weight"] = torch.ones(16)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert not {name for name in open_checkpoint(tmp_path).names() if ".4.self_attn.k_" in name}
    tensors["model.layers.0.self_attn.extra_proj.weight"] = torch.ones(16, 16)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match="extra_proj"):
        ModelRunner(EngineConfig(block_size=8, max_model_len=64), open_checkpoint(tmp_path))
