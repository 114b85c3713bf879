"""Split models: any part opens all of them, and parts that are missing, mixed up or of another model are named."""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.runner.runner import ModelRunner
from engine.weights.gguf.split import parts
from engine.weights.loader import open_checkpoint
from tests.engine.runner.feeding import logits_of
from tests.engine.weights.gguf import written

N_PARTS = 4


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    made = written.write_llama(tmp_path / "model.gguf", split_max_tensors=8)
    assert [path.name for path in made] == [f"model-{i:05}-of-{N_PARTS:05}.gguf" for i in range(1, N_PARTS + 1)]
    return made


def test_any_part_opens_the_whole_model(split: list[Path], tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (whole,) = written.write_llama(tmp_path / "whole" / "model.gguf")
    expected = open_checkpoint(whole)
    digests = set()
    for path in split:
        checkpoint = open_checkpoint(path)
        assert checkpoint.config == expected.config and checkpoint.path == path
        assert checkpoint.names() == expected.names() and checkpoint.n_bytes == expected.n_bytes
        for name in checkpoint.names():
            if len(checkpoint.shape(name)) == 2:
                ours, theirs = checkpoint.weight(name).data, expected.weight(name).data
                assert torch.equal(ours, theirs) and checkpoint.is_stored(name, ours) == expected.is_stored(name, theirs)
            else:
                assert torch.equal(checkpoint.vector(name), expected.vector(name))
            checkpoint.read_ahead(name)
            checkpoint.give_back(name)
        assert {"tokenizer.ggml.tokens", "llama.block_count"} <= set(checkpoint.metadata)
        digests.add(checkpoint.digest)
    assert len(digests) == 1


def test_it_runs_as_the_whole_one_does(split: list[Path], tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (whole,) = written.write_llama(tmp_path / "whole" / "model.gguf")
    config = EngineConfig(block_size=8, max_model_len=64, kv_cache_memory=1 << 22)
    ours, theirs = (logits_of(ModelRunner(config, open_checkpoint(path)), [[1, 2, 3]], most=8) for path in (split[2], whole))
    assert torch.equal(ours[0], theirs[0])


def refused(path: Path, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as raised:
        open_checkpoint(path)
    assert raised.value.hint


@pytest.mark.parametrize("gone", range(N_PARTS))
def test_a_missing_part_is_named(gone: int, split: list[Path]) -> None:
    split[gone].unlink()
    refused(split[gone - 1], f"of the {N_PARTS} parts of the model, {re.escape(split[gone].name)} is missing")


def test_a_part_under_a_name_of_its_own_says_how_it_should_be_called(split: list[Path], tmp_path: Path) -> None:
    other = split[1].rename(tmp_path / "other.gguf")
    refused(other, f"one of {N_PARTS} parts of a model, but its name does not say so")


def test_mixed_up_parts_are_named(split: list[Path]) -> None:
    shutil.copy(split[1], split[2])
    refused(split[0], f"{re.escape(split[2].name)}: by its name this is part 3 of 4, but it holds part 2 of 4")


def test_a_part_of_a_model_in_another_number_of_parts_is_named(split: list[Path], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    others = written.write_llama(tmp_path / "other" / "model.gguf", split_max_tensors=16)
    assert len(others) == 2
    shutil.copy(others[1], split[1])
    refused(split[0], "by its name this is part 2 of 4, but it holds part 2 of 2")


def _changed(path: Path, key: str, value: int, letter: str) -> None:
    data = path.read_bytes()
    at = data.index(key.encode()) + len(key) + 4
    path.write_bytes(data[:at] + struct.pack(letter, value) + data[at + struct.calcsize(letter) :])


def test_another_number_of_tensors_is_said(split: list[Path]) -> None:
    _changed(split[0], "split.tensors.count", 31, "<i")
    refused(split[3], "the parts have 30 tensors, but the first one says that there are 31")


def test_a_tensor_in_two_parts_is_named(split: list[Path]) -> None:
    shutil.copy(split[1], split[2])
    _changed(split[2], "split.no", 2, "<H")
    refused(split[0], f"the tensor 'blk.*' is in .*{re.escape(split[1].name)} too")


def test_counts_without_end_name_no_files(split: list[Path]) -> None:
    _changed(split[0], "split.count", 65535, "<H")
    refused(split[0], "one of 65535 parts of a model, but its name does not say so")


def test_a_file_that_is_merely_named_like_a_part_is_a_model(tmp_path: Path) -> None:
    (path,) = written.write_llama(tmp_path / "model-00002-of-00003.gguf")
    assert len(open_checkpoint(path).names()) == 30


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("m-00002-of-00003.gguf", 3),
        ("m-00004-of-00003.gguf", 1),
        ("m-00000-of-00003.gguf", 1),
        ("m-00001-of-99999.gguf", 1),
        ("m-1-of-2.gguf", 1),
        ("m.gguf", 1),
    ],
)
def test_the_names_of_parts(name: str, count: int) -> None:
    found = parts(Path("folder") / name)
    assert len(found) == count and Path("folder") / name in found and len(set(found)) == count
