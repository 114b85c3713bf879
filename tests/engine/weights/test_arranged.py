"""Tensors that are cut and joined: experts one by one or all in one, dense and quantised, and what is left out."""

from __future__ import annotations

import json
import logging
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.runner.runner import ModelRunner
from engine.weights.arranged import ArrangedCheckpoint
from engine.weights.loader import open_checkpoint
from kernels.ops import CODES
from kernels.reference.dequant import dense
from tests.engine.models import sparse, tiny
from tests.engine.models.converted_sparse import to_gguf
from tests.engine.models.test_families import PROMPTS
from tests.engine.runner.feeding import logits_of

UP = "model.layers.0.mlp.experts.{}.up_proj.weight"
SIZES = {**sparse.MODELS["qwen3_moe"][1], "moe_intermediate_size": 64}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.saved(tmp_path, "qwen3_moe", **SIZES)
    return tmp_path


def edited(folder: Path, **changes: torch.Tensor | None) -> None:
    """None: the tensor is taken out."""
    tensors = load_file(folder / "model.safetensors") | changes
    save_file({name: values for name, values in tensors.items() if values is not None}, folder / "model.safetensors")


def described(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_rows_of_all_experts_are_one_matrix(folder: Path) -> None:
    checkpoint, tensors = open_checkpoint(folder), load_file(folder / "model.safetensors")
    name = UP.replace("{}.", "")
    assert checkpoint.shape(name) == (6 * 64, 64)
    assert torch.equal(checkpoint.weight(name).data, torch.cat([tensors[UP.format(i)] for i in range(6)]))
    assert (
        checkpoint.n_bytes
        == sum(map(checkpoint.stored_bytes, checkpoint.names()))
        == sum(map(checkpoint.weight_bytes, checkpoint.names()))
    )


def test_a_missing_expert_is_named(folder: Path) -> None:
    edited(folder, **{UP.format(4): None})
    with pytest.raises(ModelLoadError, match=r"layers\.0\.mlp\.experts\.up_proj\.weight has 5 experts instead of 6; number 4"):
        open_checkpoint(folder)


def test_an_expert_too_many_is_named(folder: Path) -> None:
    edited(folder, **{UP.format(6): torch.zeros(64, 64)})
    with pytest.raises(ModelLoadError, match=r"has 7 experts instead of 6; number 6"):
        open_checkpoint(folder)


def test_experts_of_different_sizes_and_types_are_refused(folder: Path) -> None:
    edited(folder, **{UP.format(2): torch.zeros(64, 64, dtype=torch.bfloat16)})
    with pytest.raises(ModelLoadError, match="not of one type: F32 and BF16"):
        open_checkpoint(folder).weight(UP.replace("{}.", ""))
    edited(folder, **{UP.format(2): torch.zeros(32, 64)})
    with pytest.raises(ModelLoadError, match="not of one size"):
        open_checkpoint(folder)


def test_experts_that_are_quantised_one_by_one_stay_so(folder: Path) -> None:
    """In MXFP4 as llm-compressor packs it; logits are those of the dequantised weights."""
    model = tiny.saved(folder, "qwen3_moe", **SIZES)
    tensors, values = load_file(folder / "model.safetensors"), {}
    generator, codes = torch.Generator().manual_seed(3), torch.tensor(CODES["E2M1"])
    for name in [name for name in tensors if ".experts." in name]:
        n_out, n_in = tensors.pop(name).shape
        packed = torch.randint(0, 256, (n_out, n_in // 2), dtype=torch.uint8, generator=generator)
        exponents = torch.randint(122, 126, (n_out, n_in // 32), dtype=torch.uint8, generator=generator)
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.weight_packed": packed, f"{module}.weight_scale": exponents}
        numbers = codes[torch.stack((packed & 15, packed >> 4), -1).flatten(1).long()]
        values[name] = numbers * torch.exp2(exponents.float() - 127).repeat_interleave(32, 1)
    save_file(tensors, folder / "model.safetensors")
    described = json.loads((folder / "config.json").read_text())
    of_weights = {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group", "symmetric": True}
    described["quantization_config"] = {
        **{"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized", "ignore": ["lm_head", "re:.*self_attn.*"]},
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": of_weights}},
    }
    (folder / "config.json").write_text(json.dumps(described))
    for i, layer in enumerate(model.model.layers):
        for e in range(6):
            gate, up, down = (values[f"model.layers.{i}.mlp.experts.{e}.{part}_proj.weight"] for part in ("gate", "up", "down"))
            layer.mlp.experts.gate_up_proj.data[e] = torch.cat((gate, up))
            layer.mlp.experts.down_proj.data[e] = down
    checkpoint = open_checkpoint(folder)
    joined = checkpoint.weight("model.layers.1.mlp.experts.down_proj.weight")
    assert (joined.qtype, joined.shape) == ("E2M1", (6 * 64, 64))
    assert torch.equal(dense(joined)[64:128], values["model.layers.1.mlp.experts.1.down_proj.weight"])
    config = EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact")
    for ours, theirs in zip(
        logits_of(ModelRunner(config, checkpoint), PROMPTS, most=64), tiny.logits(model, PROMPTS), strict=True
    ):
        assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()


def test_quantised_experts_of_a_gguf_file_are_views_on_it(folder: Path) -> None:
    config = tiny.saved(folder, "qwen3_moe", **SIZES).config
    to_gguf(folder, config, folder / "model.gguf", quantised={"ffn_down_exps": "Q8_0", "ffn_up_exps": "Q4_0"})
    checkpoint = open_checkpoint(folder / "model.gguf")
    for layer in range(3):
        for part, qtype in (("down", "Q8_0"), ("up", "Q4_0"), ("gate", "F32")):
            name = f"model.layers.{layer}.mlp.experts.{part}_proj.weight"
            weight = checkpoint.weight(name)
            assert (weight.qtype, weight.shape) == (qtype, (6 * 64, 64))
            assert checkpoint.is_stored(name, weight.data)
            stored = checkpoint.stored.files.data(f"blk.{layer}.ffn_{part}_exps.weight").numpy()
            values = stored if qtype == "F32" else gguf.dequantize(stored, gguf.GGMLQuantizationType[qtype])
            assert np.array_equal(dense(weight).numpy(), values.reshape(6 * 64, 64))
            of_experts = torch.from_numpy(np.array(values)).view(6, 64, 64)
            edited(folder, **{name.replace("experts.", f"experts.{i}."): of_experts[i].clone() for i in range(6)})
    settings = EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact")
    of_folder, of_file = (
        logits_of(ModelRunner(settings, open_checkpoint(path)), PROMPTS[:1], most=64)[0]
        for path in (folder, folder / "model.gguf")
    )
    assert (of_folder - of_file).abs().max() < 1e-4 * of_folder.abs().max()


def test_heads_that_predict_several_tokens_are_left_out_and_kept_by_name(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    n_bytes = open_checkpoint(folder).n_bytes
    extra = {"mtp.fc.weight": torch.ones(64, 128), "model.layers.3.enorm.weight": torch.ones(64)}
    edited(folder, **extra)
    described(folder, num_nextn_predict_layers=1)
    with caplog.at_level(logging.INFO):
        checkpoint = open_checkpoint(folder)
    assert isinstance(checkpoint, ArrangedCheckpoint)
    assert set(checkpoint.unused) == set(extra) and not set(extra) & set(checkpoint.names())
    assert checkpoint.n_bytes == n_bytes and "2 tensors of heads" in caplog.text
    assert torch.equal(checkpoint.weight("mtp.fc.weight").data, extra["mtp.fc.weight"])
    ModelRunner(EngineConfig(block_size=8, max_model_len=64), checkpoint)


@pytest.mark.parametrize(
    ("changes", "layer"),
    [
        ({"num_hidden_layers": 2}, 2),
        ({"num_hidden_layers": 1, "num_nextn_predict_layers": 1}, 2),
        ({"num_hidden_layers": 2, "num_nextn_predict_layers": "1"}, 2),
    ],
)
def test_layers_that_the_configuration_does_not_know_are_refused(changes: dict[str, object], layer: int, folder: Path) -> None:
    described(folder, **changes)
    with pytest.raises(ModelLoadError, match=rf"model\.layers\.{layer}\..* the configuration says") as raised:
        open_checkpoint(folder)
    assert "num_nextn_predict_layers" in raised.value.hint


def test_layers_of_a_gguf_file_that_its_metadata_does_not_know_are_refused(folder: Path) -> None:
    config = tiny.saved(folder, "qwen3_moe", **SIZES).config
    to_gguf(folder, config, file := folder / "model.gguf")
    count = b"qwen3moe.block_count" + struct.pack("<I", 4)
    file.write_bytes(file.read_bytes().replace(count + struct.pack("<I", 3), count + struct.pack("<I", 2)))
    with pytest.raises(ModelLoadError, match=r"model\.layers\.2\..* says 2 layers"):
        open_checkpoint(folder / "model.gguf")
