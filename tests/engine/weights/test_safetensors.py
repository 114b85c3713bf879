"""Folders that transformers saved, whole and in shards, and folders that are not sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine import json_file
from engine.errors import ModelLoadError
from engine.weights.loader import open_checkpoint
from kernels.ops import DENSE

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"]
SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def _save(folder: Path, family: str = "llama", dtype: torch.dtype = torch.float32, shard: str = "1GB", **settings: Any) -> dict:
    torch.manual_seed(12)
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.save_pretrained(folder, max_shard_size=shard)
    return dict(model.named_parameters())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shard", ["1GB", "10KB"])
def test_every_tensor_of_a_saved_model(family: str, shard: str, tmp_path: Path) -> None:
    parameters = _save(tmp_path, family, shard=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "10KB")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.kind == "safetensors"
    assert set(checkpoint.names()) == set(parameters)
    for name, parameter in parameters.items():
        value = checkpoint.weight(name).data if parameter.dim() == 2 else checkpoint.vector(name)
        assert torch.equal(value, parameter)
    assert checkpoint.n_bytes == sum(parameter.numel() * 4 for parameter in parameters.values())


@pytest.mark.parametrize("qtype", DENSE)
def test_number_formats_stay_as_they_are(qtype: str, tmp_path: Path) -> None:
    parameters = _save(tmp_path, dtype=DENSE[qtype])
    checkpoint = open_checkpoint(tmp_path)
    weight = checkpoint.weight("model.layers.1.mlp.up_proj.weight")
    assert weight.qtype == qtype and torch.equal(weight.data, parameters["model.layers.1.mlp.up_proj.weight"])
    assert checkpoint.vector("model.norm.weight").dtype == torch.float32


def test_the_digest_depends_on_weights_and_configuration_only(tmp_path: Path) -> None:
    for name, settings in (("a", {}), ("b", {}), ("shards", {"shard": "10KB"}), ("other", {"rms_norm_eps": 1e-5})):
        _save(tmp_path / name, **settings)
    digests = {path.name: open_checkpoint(path).digest for path in tmp_path.iterdir()}
    assert digests["a"] == digests["b"] == digests["shards"] != digests["other"]
    tensors = load_file(tmp_path / "b" / "model.safetensors")
    tensors["lm_head.weight"][3, 3] += 1
    save_file(tensors, tmp_path / "b" / "model.safetensors")
    assert open_checkpoint(tmp_path / "b").digest != digests["a"]


def test_the_text_half_of_a_model_that_sees(tmp_path: Path) -> None:
    parameters = _save(tmp_path / "text", "gemma3_text")
    for style, prefix in (("new", "model.language_model."), ("old", "language_model.model.")):
        folder = tmp_path / style
        folder.mkdir()
        named = {prefix + name.removeprefix("model."): value.detach().clone() for name, value in parameters.items()}
        seeing = {("model.vision_tower.x" if style == "new" else "vision_tower.x"): torch.zeros(3, 3, 3, 3)}
        save_file({**named, **seeing, "multi_modal_projector.w": torch.zeros(2, 2)}, folder / "model.safetensors")
        text = json.loads((tmp_path / "text" / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
        assert set(open_checkpoint(folder).names()) == set(parameters)


def test_stored_rotary_frequencies_are_no_parameters(tmp_path: Path) -> None:
    parameters = _save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, tmp_path / "model.safetensors")
    assert set(open_checkpoint(tmp_path).names()) == set(parameters)


def _index(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "model.safetensors.index.json"
    return path, json.loads(path.read_text())


def _refused(path: Path, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as raised:
        open_checkpoint(path)
    assert str(path) in raised.value.message and raised.value.hint


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    _save(tmp_path, shard="10KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    _refused(tmp_path, f"{gone.name}: the file is missing")


def test_a_shard_without_its_tensor_is_named(tmp_path: Path) -> None:
    _save(tmp_path, shard="10KB")
    path, index = _index(tmp_path)
    index["weight_map"]["model.extra.weight"] = next(iter(index["weight_map"].values()))
    path.write_text(json.dumps(index))
    _refused(tmp_path, r"model\.extra\.weight is missing")


@pytest.mark.parametrize(
    "file", ["../elsewhere.safetensors", "/etc/passwd", "pytorch_model.bin", 7, "a\0b.safetensors", "\u001b[0m.safetensors"]
)
def test_an_index_cannot_point_elsewhere(file: object, tmp_path: Path) -> None:
    _save(tmp_path, shard="10KB")
    path, index = _index(tmp_path)
    index["weight_map"]["lm_head.weight"] = file
    path.write_text(json.dumps(index))
    _refused(tmp_path, "not the name of a safetensors file")


def test_json_with_half_a_character_or_too_much_of_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _save(tmp_path)
    config = tmp_path / "config.json"
    whole = config.read_text()
    config.write_text(whole.replace('"model_type"', '"note": "\\ud83d\\ude00", "model_type"'))
    open_checkpoint(tmp_path)
    config.write_text(whole.replace('"model_type"', '"note": "\\ud83d", "model_type"'))
    _refused(tmp_path, r"config\.json cannot be read as JSON")
    config.write_text(whole)
    monkeypatch.setattr(json_file, "_MOST_BYTES", len(whole) - 1)
    _refused(tmp_path, r"config\.json has .* bytes, more than")


def test_cut_and_spoiled_files_are_refused(tmp_path: Path) -> None:
    _save(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for content in (b"", whole[:7], whole[:200], whole[:-1], b"\xff" * 64, whole[:8] + b"[" + whole[9:]):
        path.write_bytes(content)
        _refused(tmp_path, "not a complete safetensors file")


def test_types_that_are_not_numbers_of_a_model_are_refused(tmp_path: Path) -> None:
    _save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["lm_head.weight"].to(torch.int64)}, tmp_path / "model.safetensors")
    _refused(tmp_path, r"lm_head\.weight is of type I64")


def test_pickled_weights_are_refused_with_the_reason(tmp_path: Path) -> None:
    _save(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="pickled"):
        open_checkpoint(tmp_path)


def test_folders_and_paths_that_are_no_model(tmp_path: Path) -> None:
    _refused(tmp_path / "absent", "no such file or folder")
    (tmp_path / "empty").mkdir()
    _refused(tmp_path / "empty", r"config\.json: the file is missing")
    (tmp_path / "empty" / "some.gguf").touch()
    _refused(tmp_path / "empty", "GGUF files is not one model")
    (tmp_path / "text.gguf").write_text("hello, this is not a model")
    _refused(tmp_path / "text.gguf", "not a GGUF file")
    (tmp_path / "bad").mkdir()
    for content in ("{", "[]", "\xff"):
        (tmp_path / "bad" / "config.json").write_text(content, encoding="latin-1")
        _refused(tmp_path / "bad", r"config\.json")


def test_asking_for_the_wrong_tensor(tmp_path: Path) -> None:
    _save(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(ModelLoadError, match=r"model\.nothing is missing"):
        checkpoint.vector("model.nothing")
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight has the shape \[32\]"):
        checkpoint.weight("model.norm.weight")
    with pytest.raises(ModelLoadError, match=r"lm_head\.weight has the shape \[50, 32\]"):
        checkpoint.vector("lm_head.weight")
