"""SafetensorsFiles: the tensors of a folder in Hugging Face's layout, by the names under which layers ask for them.

Layout: model.safetensors, or the shards that model.safetensors.index.json lists. The safetensors package maps the files into
memory and checks their headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelLoadError
from engine.json_file import read_object
from engine.weights.checkpoint import no_such_tensor

DOWNLOAD = "The download is incomplete or damaged; download the model again."
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_UNUSED = re.compile(
    r"(.*\.)?rotary_emb\.inv_freq"
    r"|(model\.)?(vision_tower|vision_model|audio_tower|embed_vision|embed_audio|multi_modal_projector|visual)\..*"
)
"""Computed from the configuration, or the image half of a model that also sees."""
_PREFIXES = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
"""How models that also see name their text half, in transformers 4 and 5."""
ITEM_BYTES = {
    **{"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1},
    **{"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1},
}
"""Bytes of a number of each type that is known by what safetensors calls it."""


class _Stored(NamedTuple):
    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


class SafetensorsFiles:
    """Opening reads the headers only. Raises ModelLoadError for files that are missing, damaged or of unknown types.

    placed: from a name to the one that layers ask for, or None for a tensor that is to be left alone.
    """

    def __init__(self, path: Path, placed: Callable[[str], str | None] | None = None) -> None:
        self.path = path
        self._placed = placed
        self._files: dict[Path, Any] = {}
        self._stored: dict[str, _Stored] = {}
        for file, names in _shards(path).items():
            self._open(file, names)

    def names(self) -> Collection[str]:
        return self._stored.keys()

    def file(self, name: str) -> Path:
        return self._find(name).file

    def stored_name(self, name: str) -> str:
        """What the file calls it; the name itself, if it has no such tensor."""
        return self._stored[name].name if name in self._stored else name

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def dtype(self, name: str) -> str:
        """As safetensors calls it: one of ITEM_BYTES."""
        return self._find(name).dtype

    def n_bytes(self, name: str) -> int:
        _, _, dtype, shape = self._find(name)
        size = ITEM_BYTES[dtype]
        for dim in shape:
            size *= dim
        return size

    def tensor(self, name: str) -> Tensor:
        """A view on the mapped file."""
        stored = self._find(name)
        return self._files[stored.file].get_tensor(stored.name)

    def _open(self, file: Path, names: list[str] | None) -> None:
        """names: the tensors that the index expects in this file; None for all."""
        try:
            self._files[file] = opened = safe_open(file, framework="pt")
            in_file = set(opened.keys())
        except FileNotFoundError:
            raise ModelLoadError(f"{file}: the file is missing.", DOWNLOAD) from None
        except (SafetensorError, OSError) as error:
            raise ModelLoadError(f"{file}: this is not a complete safetensors file ({error}).", DOWNLOAD) from None
        absent = set(names or ()) - in_file
        if absent:
            raise ModelLoadError(f"{file}: the tensor {min(absent)} is missing, though {_INDEX} lists it.", DOWNLOAD)
        for stored in sorted(in_file if names is None else names):
            if _UNUSED.fullmatch(stored):
                continue
            name = next((new + stored.removeprefix(old) for old, new in _PREFIXES if stored.startswith(old)), stored)
            if self._placed is not None and (name := self._placed(name)) is None:
                continue
            if name in self._stored:
                raise ModelLoadError(f"{file}: the tensor {name} is there twice.", DOWNLOAD)
            header = opened.get_slice(stored)
            self._stored[name] = _Stored(file, stored, header.get_dtype(), tuple(header.get_shape()))
            if header.get_dtype() not in ITEM_BYTES:
                raise ModelLoadError(
                    f"{file}: the tensor {stored} is of type {header.get_dtype()}, which is not supported.",
                    "Take a checkpoint in float16 or bfloat16, in another quantisation, or a GGUF file.",
                )

    def _find(self, name: str) -> _Stored:
        if name not in self._stored:
            raise no_such_tensor(self.path, name)
        return self._stored[name]


def _shards(path: Path) -> dict[Path, list[str] | None]:
    """File -> names of its tensors (None: all)."""
    if not (path / _INDEX).exists():
        if (path / _SINGLE).is_file():
            return {path / _SINGLE: None}
        pickled = any(path.glob("*.bin")) or any(path.glob("*.pt"))
        raise ModelLoadError(
            f"{path}: the folder has neither {_SINGLE} nor {_INDEX}.",
            "It has pickled weights, which can run code when opened; take the safetensors version of the model."
            if pickled
            else "Download the model again, or give a .gguf file.",
        )
    weight_map = read_json(path / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{path / _INDEX}: weight_map is missing.", DOWNLOAD)
    shards: dict[Path, list[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not (file.endswith(".safetensors") and file.isprintable()):
            raise ModelLoadError(f"{path / _INDEX}: {file!r} is not the name of a safetensors file.", DOWNLOAD)
        shards.setdefault(path / file, []).append(name)
    return shards


def read_json(file: Path) -> dict[str, Any]:
    value = read_object(file, DOWNLOAD)
    if value is None:
        raise ModelLoadError(
            f"{file}: the file is missing.",
            "Give a folder in Hugging Face's layout (config.json beside safetensors files), or a .gguf file.",
        )
    return value
