"""GGUF files give exactly the tensors of transformers' own model of that configuration, in its conventions."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine.errors import ModelLoadError
from engine.weights.config import ModelConfig
from engine.weights.gguf.checkpoint import GGUFCheckpoint
from engine.weights.gguf.names import restore_rows
from engine.weights.loader import open_checkpoint
from kernels.reference.dequant import dequantize
from tests import models
from tests.engine.weights.gguf_writer import entry, tensor_info, tiny_llama, typed

REAL = [
    models.smollm2,
    pytest.param(models.gemma, marks=pytest.mark.models),
    pytest.param(models.qwen_05b, marks=pytest.mark.models),
    pytest.param(models.qwen_15b, marks=pytest.mark.models),
]


def _transformers_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    kind = AutoConfig.for_model(
        "gemma3_text" if config.family == "gemma3" else config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        tie_word_embeddings=config.tie_embeddings,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(kind)
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("model", REAL)
def test_names_and_shapes_are_those_of_transformers(model: Callable[[], Path]) -> None:
    checkpoint = open_checkpoint(model())
    assert {name: checkpoint.shape(name) for name in checkpoint.names()} == _transformers_shapes(checkpoint.config)
    assert checkpoint.n_bytes == sum(checkpoint.stored_bytes(name) for name in checkpoint.names())


def test_what_the_default_model_is() -> None:
    config = open_checkpoint(models.smollm2()).config
    assert (config.family, config.n_layers, config.n_heads, config.n_kv_heads, config.head_dim) == ("llama", 30, 9, 3, 64)
    assert (config.ropes[0].theta, config.max_position, config.tie_embeddings) == (100_000, 8192, True)
    assert not any(config.windows)


@pytest.mark.models
def test_what_gemma_is() -> None:
    config = open_checkpoint(models.gemma()).config
    assert config.windows == (512, 512, 512, 512, 512, 0) * 3
    assert [rope.theta for rope in config.distinct_ropes] == [10_000, 1_000_000]
    assert math.isclose(config.embedding_scale, math.sqrt(640)) and config.attention_scale == 1 / 16
    assert config.activation == "gelu_tanh"


@pytest.mark.models
def test_gemma_norms_follow_transformers_which_adds_one_itself() -> None:
    checkpoint = open_checkpoint(models.gemma())
    assert isinstance(checkpoint, GGUFCheckpoint)
    for name, stored in (
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.3.self_attn.q_norm.weight", "blk.3.attn_q_norm.weight"),
    ):
        assert torch.equal(checkpoint.vector(name), checkpoint.file.data(stored) - 1)


def _permuted(rows: torch.Tensor, n_heads: int) -> torch.Tensor:
    """What LlamaModel.permute of llama.cpp's converter does to q and k."""
    halves = rows.reshape(n_heads, 2, rows.shape[0] // n_heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("n_heads", [1, 2, 4])
def test_the_converters_permutation_is_undone(n_heads: int) -> None:
    rows = torch.arange(32 * 3).view(32, 3)
    assert torch.equal(restore_rows(_permuted(rows, n_heads), n_heads), rows)
    assert torch.equal(restore_rows(_permuted(rows[:, 0], n_heads), n_heads), rows[:, 0])


def test_rows_of_quantised_q_and_k_move_as_wholes() -> None:
    checkpoint = open_checkpoint(models.smollm2())
    assert isinstance(checkpoint, GGUFCheckpoint)
    for name, stored, n_heads in (("q_proj", "attn_q", 9), ("k_proj", "attn_k", 3)):
        weight = checkpoint.weight(f"model.layers.7.self_attn.{name}.weight")
        values = gguf.quants.dequantize(weight.data.numpy(), gguf.GGMLQuantizationType.Q4_1)
        in_file = dequantize("Q4_1", checkpoint.file.data(f"blk.7.{stored}.weight"))
        assert torch.equal(_permuted(torch.from_numpy(values), n_heads), in_file)


def test_weights_are_views_on_the_file_where_no_row_moves() -> None:
    checkpoint = open_checkpoint(models.smollm2())
    assert isinstance(checkpoint, GGUFCheckpoint)
    whole = checkpoint.file.bytes
    data = checkpoint.weight("model.layers.0.mlp.down_proj.weight").data
    assert whole.data_ptr() < data.data_ptr() < whole.data_ptr() + whole.numel()


def _write(tmp_path: Path, name: str, dims: tuple[int, ...]) -> Path:
    parts = tiny_llama()
    parts.infos.append(tensor_info(name, dims, 0, len(parts.data)))
    parts.data += bytes(4096)
    path = tmp_path / "model.gguf"
    path.write_bytes(parts.bytes())
    return path


def test_a_tensor_of_another_family_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"llama models have no tensors named blk\.0\.ffn_gate_exps\.weight"):
        open_checkpoint(_write(tmp_path, "blk.0.ffn_gate_exps.weight", (32, 4)))


def test_frequencies_in_the_file_are_no_obstacle(tmp_path: Path) -> None:
    assert len(open_checkpoint(_write(tmp_path, "blk.0.attn_rot_embd.weight", (8,))).names()) == 11


def test_rope_factors_of_the_wrong_number_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight is not 8 positive numbers"):
        open_checkpoint(_write(tmp_path, "rope_freqs.weight", (5,)))


def test_a_part_of_a_split_model_says_how_to_join_it(tmp_path: Path) -> None:
    parts = tiny_llama()
    parts.entries.append(entry("split.count", typed("u16", 3)))
    (tmp_path / "model-00001-of-00003.gguf").write_bytes(parts.bytes())
    with pytest.raises(ModelLoadError, match="--merge"):
        open_checkpoint(tmp_path / "model-00001-of-00003.gguf")


def test_the_digest_tells_models_apart_and_is_stable(tmp_path: Path) -> None:
    paths = []
    for i in range(3):
        parts = tiny_llama()
        parts.data = parts.data[:-1] + bytes([i // 2])  # in the last tensor's last byte
        paths.append(tmp_path / f"{i}.gguf")
        paths[-1].write_bytes(parts.bytes())
    same, again, other = (open_checkpoint(path).digest for path in paths)
    assert same == again != other
    assert len(same) == 64
