"""SafetensorsCheckpoint: a folder in Hugging Face's layout, dense or quantised, behind the Checkpoint interface."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.quant import methods
from engine.weights import pages
from engine.weights.checkpoint import digest_of, require_rank
from engine.weights.hf.config import from_hf
from engine.weights.safetensors_files import SafetensorsFiles, read_json
from kernels.ops import DENSE, Weight

_QTYPES = {dtype: qtype for qtype, dtype in DENSE.items()}


class SafetensorsCheckpoint:
    """See Checkpoint. Opening reads the headers only; digest is computed when first asked for.

    A matrix that is quantised is served under the name that it would have if it were dense, whatever its parts are called.
    """

    kind = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = read_json(path / "config.json")
        self.config = from_hf(self.metadata, str(path / "config.json"))
        borrowed = self.config.borrowed_files
        self._files = SafetensorsFiles(path, borrowed and borrowed.placed)
        found = methods.find(self.metadata, str(path / "config.json"), self._files)
        self._matrices = found.matrices
        parts = {part for matrix in self._matrices.values() for part in matrix.parts}
        self._plain = [name for name in self._files.names() if name not in parts and name not in found.unused]
        self._check_plain()
        self.n_bytes = sum(self.stored_bytes(name) for name in self.names())

    @cached_property
    def digest(self) -> str:
        names = sorted(self._files.names())
        raw = ((name, self._files.tensor(name).flatten().view(torch.uint8)) for name in names)
        described = [(name, self._files.dtype(name), self._files.shape(name)) for name in names]
        return digest_of(json.dumps([self.metadata, described], sort_keys=True).encode(), raw)

    def names(self) -> tuple[str, ...]:
        return *self._plain, *self._matrices

    def shape(self, name: str) -> tuple[int, ...]:
        return self._matrices[name].shape if name in self._matrices else self._files.shape(name)

    def stored_bytes(self, name: str) -> int:
        return sum(self._files.n_bytes(part) for part in self._parts(name))

    def weight_bytes(self, name: str) -> int:
        return self._matrices[name].n_bytes if name in self._matrices else self._files.n_bytes(name)

    def unpacking_bytes(self, name: str) -> int:
        return self._matrices[name].unpacking_bytes if name in self._matrices else 0

    def qtype(self, name: str) -> str:
        return self._matrices[name].qtype if name in self._matrices else self._files.dtype(name)

    def weight(self, name: str) -> Weight:
        if name in self._matrices:
            return self._matrices[name].load()
        require_rank(self, name, 2, 3)
        tensor = self._files.tensor(name).flatten(0, -2)
        return Weight(_QTYPES[tensor.dtype], (tensor.shape[0], tensor.shape[1]), tensor)

    def vector(self, name: str) -> Tensor:
        if len(self.shape(name)) == 2:
            require_rank(self, name, 1)
        return self._files.tensor(name).float()

    def is_stored(self, name: str, data: Tensor) -> bool:
        return data.data_ptr() == self._files.tensor(self._parts(name)[0]).data_ptr()

    def read_ahead(self, name: str) -> None:
        for part in self._parts(name):
            pages.read_ahead(self._files.tensor(part))

    def give_back(self, name: str) -> None:
        for part in self._parts(name):
            pages.give_back(self._files.tensor(part))

    def _parts(self, name: str) -> tuple[str, ...]:
        """Names of the stored tensors behind a served one, that of its values first."""
        return self._matrices[name].parts if name in self._matrices else (name,)

    def _check_plain(self) -> None:
        clash = sorted(self._matrices.keys() & set(self._plain))
        if clash:
            raise ModelLoadError(
                f"{self.path}: {clash[0]} is there both quantised and as it is.", "The checkpoint is damaged; download it again."
            )
        for name in self._plain:
            if self._files.dtype(name) not in DENSE:
                quantised = methods.section(self.metadata, "") is not None
                raise ModelLoadError(
                    f"{self._files.file(name)}: the tensor {self._files.stored_name(name)} is of type {self._files.dtype(name)}, "
                    f"which is {'not part of its quantisation' if quantised else 'not supported'}.",
                    f"Take a checkpoint in {', '.join(DENSE)}, in another quantisation, or a GGUF file.",
                )
