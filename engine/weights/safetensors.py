"""SafetensorsCheckpoint: a folder in Hugging Face's layout behind the Checkpoint interface.

Layout: config.json, and model.safetensors or the shards that model.safetensors.index.json lists. The safetensors
package maps the files into memory and checks their headers.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelLoadError
from engine.weights import pages
from engine.weights.checkpoint import digest_of, no_such_tensor, require_rank
from engine.weights.hf.config import from_hf
from kernels.ops import DENSE, Weight

_DOWNLOAD = "The download is incomplete or damaged; download the model again."
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_QTYPES = {dtype: qtype for qtype, dtype in DENSE.items()}
_FILE_DTYPES = {"F32": 4, "F16": 2, "BF16": 2}
_UNUSED = re.compile(r"(.*\.)?rotary_emb\.inv_freq|(model\.)?(vision_tower|multi_modal_projector)\..*")
"""Computed from the configuration, or the image half of a gemma3 that also sees."""
_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
"""How models that also see name their text half, in transformers 4 and 5."""


class SafetensorsCheckpoint:
    """See Checkpoint. Opening reads the headers only; digest is computed when first asked for."""

    kind = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = _read_json(path / "config.json")
        self.config = from_hf(self.metadata, str(path / "config.json"))
        self._files: dict[str, Any] = {}
        self._stored: dict[str, tuple[Path, str]] = {}
        """Name as served -> (file, name in it)."""
        for file, names in _shards(path).items():
            self._open(file, names)
        self.n_bytes = sum(self.stored_bytes(name) for name in self._stored)

    @cached_property
    def digest(self) -> str:
        raw = ((name, self._tensor(name).flatten().view(torch.uint8)) for name in sorted(self._stored))
        described = [(name, self._dtype(name), self.shape(name)) for name in sorted(self._stored)]
        return digest_of(json.dumps([self.metadata, described], sort_keys=True).encode(), raw)

    def names(self) -> tuple[str, ...]:
        return tuple(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._slice(name).get_shape())

    def stored_bytes(self, name: str) -> int:
        size = _FILE_DTYPES[self._dtype(name)]
        for dim in self.shape(name):
            size *= dim
        return size

    def weight(self, name: str) -> Weight:
        require_rank(self, name, 2)
        tensor = self._tensor(name)
        return Weight(_QTYPES[tensor.dtype], (tensor.shape[0], tensor.shape[1]), tensor)

    def vector(self, name: str) -> Tensor:
        if len(self.shape(name)) == 2:
            require_rank(self, name, 1)
        return self._tensor(name).float()

    def is_stored(self, name: str, data: Tensor) -> bool:
        return data.data_ptr() == self._tensor(name).data_ptr()

    def read_ahead(self, name: str) -> None:
        pages.read_ahead(self._tensor(name))

    def give_back(self, name: str) -> None:
        pages.give_back(self._tensor(name))

    def _open(self, file: Path, names: list[str] | None) -> None:
        """names: the tensors that the index expects in this file; None for all."""
        try:
            self._files[str(file)] = opened = safe_open(file, framework="pt")
            in_file = set(opened.keys())
        except FileNotFoundError:
            raise ModelLoadError(f"{file}: the file is missing.", _DOWNLOAD) from None
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{file}: this is not a complete safetensors file ({error}).", _DOWNLOAD) from None
        absent = set(names or ()) - in_file
        if absent:
            raise ModelLoadError(f"{file}: the tensor {min(absent)} is missing, though {_INDEX} lists it.", _DOWNLOAD)
        for stored in sorted(in_file if names is None else names):
            if _UNUSED.fullmatch(stored):
                continue
            name = next((new + stored.removeprefix(old) for old, new in _PREFIXES if stored.startswith(old)), stored)
            if name in self._stored:
                raise ModelLoadError(f"{file}: the tensor {name} is there twice.", _DOWNLOAD)
            self._stored[name] = (file, stored)
            if self._dtype(name) not in _FILE_DTYPES:
                raise ModelLoadError(
                    f"{file}: the tensor {stored} is of type {self._dtype(name)}, which is not supported.",
                    f"Take a checkpoint in {', '.join(_FILE_DTYPES)}, or a GGUF file.",
                )

    def _locate(self, name: str) -> tuple[Any, str]:
        if name not in self._stored:
            raise no_such_tensor(self.path, name)
        file, stored = self._stored[name]
        return self._files[str(file)], stored

    def _slice(self, name: str) -> Any:
        opened, stored = self._locate(name)
        return opened.get_slice(stored)

    def _tensor(self, name: str) -> Tensor:
        opened, stored = self._locate(name)
        return opened.get_tensor(stored)

    def _dtype(self, name: str) -> str:
        return self._slice(name).get_dtype()


def _shards(path: Path) -> dict[Path, list[str] | None]:
    """File -> names of its tensors (None: all)."""
    if not (path / _INDEX).exists():
        if (path / _SINGLE).exists():
            return {path / _SINGLE: None}
        pickled = any(path.glob("*.bin")) or any(path.glob("*.pt"))
        raise ModelLoadError(
            f"{path}: the folder has neither {_SINGLE} nor {_INDEX}.",
            "It has pickled weights, which can run code when opened; take the safetensors version of the model."
            if pickled
            else "Download the model again, or give a .gguf file.",
        )
    weight_map = _read_json(path / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{path / _INDEX}: weight_map is missing.", _DOWNLOAD)
    shards: dict[Path, list[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise ModelLoadError(f"{path / _INDEX}: {file!r} is not the name of a safetensors file.", _DOWNLOAD)
        shards.setdefault(path / file, []).append(name)
    return shards


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelLoadError(
            f"{file}: the file is missing.",
            "Give a folder in Hugging Face's layout (config.json beside safetensors files), or a .gguf file.",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file}: the file cannot be read as JSON ({error}).", _DOWNLOAD) from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{file}: expected an object.", _DOWNLOAD)
    return value
