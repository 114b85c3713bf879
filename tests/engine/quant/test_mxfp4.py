"""gpt-oss with experts in MXFP4: logits are those of transformers' own dequantised weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from tests.engine.models import sparse, tiny
from tests.engine.models.test_families import PROMPTS
from tests.engine.runner.feeding import logits_of


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, list[torch.Tensor]]:
    """The folder, and what transformers makes of the dequantised weights."""
    generator = torch.Generator().manual_seed(5)
    model = tiny.saved(tmp_path, "gpt_oss", **{**sparse.MODELS["gpt_oss"][1], "intermediate_size": 64})
    tensors = load_file(tmp_path / "model.safetensors")
    for name, parameter in model.named_parameters():
        if name.endswith(("gate_up_proj", "down_proj")):
            n_experts, n_in, n_out = parameter.shape
            blocks = torch.randint(0, 256, (n_experts, n_out, n_in // 32, 16), dtype=torch.uint8, generator=generator)
            scales = torch.randint(122, 126, blocks.shape[:-1], dtype=torch.uint8, generator=generator)
            parameter.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            del tensors[name]
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, tmp_path / "model.safetensors")
    described = json.loads((tmp_path / "config.json").read_text())
    described["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (tmp_path / "config.json").write_text(json.dumps(described))
    return tmp_path, tiny.logits(model, PROMPTS)


def test_logits_are_those_of_the_dequantised_weights(made: tuple[Path, list[torch.Tensor]]) -> None:
    folder, expected = made
    checkpoint = open_checkpoint(folder)
    gate = checkpoint.weight("model.layers.0.mlp.experts.gate_proj.weight")
    assert (gate.qtype, gate.shape, gate.group) == ("E2M1", (6 * 64, 64), 32)
    runner = ModelRunner(EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact"), checkpoint)
    for ours, theirs in zip(logits_of(runner, PROMPTS, most=64), expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()


def test_scales_that_do_not_fit_are_refused_by_name(made: tuple[Path, list[torch.Tensor]]) -> None:
    folder = made[0]
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    save_file({**tensors, name: tensors[name][:, :5].contiguous()}, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.experts\.down_proj_scales"):
        open_checkpoint(folder)
