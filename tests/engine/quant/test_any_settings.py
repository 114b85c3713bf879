"""Whatever stands in a quantization_config, or becomes of a tensor, a checkpoint opens or is refused with a ModelLoadError."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelLoadError
from engine.weights.loader import open_checkpoint
from tests import models
from tests.engine.quant.checkpoints import EVERY

VALUES = (None, True, -1, 0, 1, 7, 64, 10**12, 1.5, float("nan"), "", "x", "re:(", [], [1], ["x"], [0, 0], [64, 64], {}, {"x": 1})
MODULE = "model.layers.1.self_attn.k_proj"


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Where something stands in nested objects and lists, the whole included."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def put(value: Any, path: tuple, new: Any) -> Any:
    if not path:
        return new
    value[path[0]] = put(value[path[0]], path[1:], new)
    return value


def opens(folder: Path) -> bool:
    """Whether all of it could be read; any error but a ModelLoadError fails the test."""
    try:
        checkpoint = open_checkpoint(folder)
        checkpoint.weight(f"{MODULE}.weight")
        checkpoint.weight_bytes(f"{MODULE}.weight")
    except ModelLoadError as error:
        assert error.hint
        return False
    return True


@pytest.mark.parametrize("name", EVERY)
def test_any_value_at_any_place_of_the_configuration(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(models.quantized(name) / "model.safetensors")
    config = json.loads((models.quantized(name) / "config.json").read_text())
    counts = {True: 0, False: 0}
    for path in places(config["quantization_config"]):
        for value in VALUES:
            other = put(copy.deepcopy(config), ("quantization_config", *path), value)
            (tmp_path / "config.json").write_text(json.dumps(other))
            counts[opens(tmp_path)] += 1
    assert min(counts.values()) > 10


@pytest.mark.parametrize("name", EVERY)
def test_any_change_of_a_tensor(name: str, tmp_path: Path) -> None:
    stored = load_file(models.quantized(name) / "model.safetensors")
    (tmp_path / "config.json").write_bytes((models.quantized(name) / "config.json").read_bytes())
    parts = [key for key in stored if key.startswith(f"{MODULE}.")]
    assert parts
    refused = 0
    for part in parts:
        tensor = stored[part]
        raw = tensor.contiguous().flatten().view(torch.uint8)
        changes = [None, tensor.flatten(), tensor[None], tensor.new_zeros(0), raw, raw.repeat(2), torch.zeros(3, 5)]
        changes += [
            raw.flip(0).view(tensor.dtype).view(tensor.shape),
            torch.full_like(raw, 255).view(tensor.dtype).view(tensor.shape),
        ]
        changes += [tensor.float(), tensor.to(torch.int64)] if tensor.numel() else []
        if tensor.dim() == 2:
            changes += [tensor[:-1], tensor[:, :-1], tensor[:0], tensor.T, tensor.repeat(2, 1), tensor.repeat(1, 2)]
        for change in changes:
            other = {key: value for key, value in stored.items() if key != part}
            if change is not None:
                other[part] = change.contiguous().clone()
            save_file(other, tmp_path / "model.safetensors")
            refused += not opens(tmp_path)
    assert refused > len(parts)
