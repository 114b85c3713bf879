"""Filling a model: every slot once, every tensor used, progress that ends, and errors that name tensors."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelLoadError
from engine.weights.loader import fill, open_checkpoint
from kernels.ops import Weight
from tests import models
from tests.engine.weights.gguf_writer import tiny_llama
from tests.engine.weights.test_pages import resident_bytes


@dataclass
class OneSlot:
    shape: tuple[int, ...]
    values: list[Weight | torch.Tensor] = field(default_factory=list)

    def fill(self, value: Weight | torch.Tensor) -> bool:
        self.values.append(value)
        return True


class Model:
    """Slots for all tensors of a checkpoint, to be changed by a test."""

    def __init__(self, checkpoint) -> None:
        self.slots = {name: OneSlot(checkpoint.shape(name)) for name in checkpoint.names()}

    def parameters(self) -> dict[str, OneSlot]:
        return self.slots


@pytest.fixture
def checkpoint(tmp_path: Path):
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_llama().bytes())
    return open_checkpoint(path)


def test_every_slot_is_filled_once_and_progress_ends_at_the_total() -> None:
    checkpoint = open_checkpoint(models.smollm2())
    model, reports = Model(checkpoint), []
    fill(model, checkpoint, progress=lambda done, total: reports.append((done, total)))
    assert all(len(slot.values) == 1 for slot in model.slots.values())
    assert model.slots["model.layers.0.mlp.up_proj.weight"].values[0].qtype == "Q4_1"
    assert model.slots["model.norm.weight"].values[0].dtype == torch.float32
    assert [done for done, _ in reports] == sorted(done for done, _ in reports)
    assert reports[-1] == (checkpoint.n_bytes, checkpoint.n_bytes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_quantisation_matrices_are_dense(dtype: torch.dtype) -> None:
    checkpoint = open_checkpoint(models.smollm2())
    name = "model.layers.0.mlp.down_proj.weight"
    model = Model(checkpoint)
    model.slots = {name: slot for name, slot in model.slots.items() if "embed" not in name}
    checkpoint._sources.pop("model.embed_tokens.weight")  # the largest one; without it the test is quick
    fill(model, checkpoint, quantization="none", dtype=dtype)
    weight = model.slots[name].values[0]
    expected = gguf.quants.dequantize(checkpoint.weight(name).data.numpy(), gguf.GGMLQuantizationType.Q4_1)
    assert weight.qtype == {torch.float32: "F32", torch.bfloat16: "BF16"}[dtype]
    assert torch.equal(weight.data, torch.from_numpy(expected).to(dtype))


def test_missing_unused_and_misshapen_tensors_are_all_named(checkpoint) -> None:
    model = Model(checkpoint)
    model.slots["model.layers.1.mlp.up_proj.weight"] = OneSlot((96, 64))
    model.slots["model.norm.weight"].shape = (65,)
    del model.slots["model.layers.0.mlp.down_proj.weight"]
    with pytest.raises(ModelLoadError) as raised:
        fill(model, checkpoint)
    assert "model.layers.1.mlp.up_proj.weight is missing" in raised.value.message
    assert "model.layers.0.mlp.down_proj.weight has no place in the model" in raised.value.message
    assert "model.norm.weight [64] instead of [65] has another shape" in raised.value.message
    assert str(checkpoint.path) in raised.value.message and raised.value.hint
    assert not any(slot.values for slot in model.slots.values())


def test_a_tied_output_matrix_may_be_there_too(tmp_path: Path) -> None:
    from tests.engine.models import tiny

    tiny.saved(tmp_path, "llama", tie_word_embeddings=False)
    config = tmp_path / "config.json"
    checkpoint = open_checkpoint(tmp_path)
    model = Model(checkpoint)
    del model.slots["lm_head.weight"]
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight has no place"):
        fill(model, checkpoint)
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "again.safetensors")
    (tmp_path / "again.safetensors").replace(tmp_path / "model.safetensors")
    reports = []
    fill(model, open_checkpoint(tmp_path), progress=lambda done, total: reports.append((done, total)))
    assert reports[-1][0] == reports[-1][1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("quantization", ["auto", "none"])
def test_of_the_file_stays_in_memory_only_what_slots_refer_to(quantization: str) -> None:
    gc.collect()  # models of other tests may have mapped it too
    checkpoint = open_checkpoint(models.smollm2())
    model = Model(checkpoint)
    fill(model, checkpoint, quantization=quantization, dtype=torch.bfloat16)
    referred = [name for name, slot in model.slots.items() if checkpoint.is_stored(name, _data(slot.values[0]))]
    is_permuted = [name for name in model.slots if "q_proj" in name or "k_proj" in name]
    if quantization == "none":
        assert referred == []
    else:
        assert "model.embed_tokens.weight" in referred and is_permuted and not {*referred} & {*is_permuted}
    kept = sum(checkpoint.stored_bytes(name) for name in referred)
    assert kept - (1 << 20) < resident_bytes(models.smollm2()) < kept + (8 << 20)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("dtype", "stay"), [(torch.float32, True), (torch.bfloat16, False)])
def test_of_a_folder_too(dtype: torch.dtype, stay: bool, tmp_path: Path) -> None:
    from tests.engine.models import tiny

    tiny.saved(tmp_path, "llama", hidden_size=512, intermediate_size=1024, head_dim=16)
    checkpoint = open_checkpoint(tmp_path)
    model = Model(checkpoint)
    fill(model, checkpoint, quantization="auto" if stay else "none", dtype=dtype)
    slots = [(name, slot) for name, slot in model.slots.items() if len(slot.shape) == 2]
    assert all(checkpoint.is_stored(name, _data(slot.values[0])) == stay for name, slot in slots)
    in_memory = resident_bytes(tmp_path / "model.safetensors")
    assert in_memory > checkpoint.n_bytes - (1 << 20) if stay else in_memory < checkpoint.n_bytes / 4


def _data(value: Weight | torch.Tensor) -> torch.Tensor:
    return value.data if isinstance(value, Weight) else value
