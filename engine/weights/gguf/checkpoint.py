"""GGUFCheckpoint: a GGUF file behind the Checkpoint interface."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from torch import Tensor

from engine.errors import ModelLoadError
from engine.weights import pages
from engine.weights.checkpoint import digest_of, no_such_tensor, require_rank
from engine.weights.gguf.config import from_gguf
from engine.weights.gguf.file import GGUFFile
from engine.weights.gguf.names import Source, map_names, restore_rows
from kernels.ops import BLOCKS, Weight
from kernels.reference.dequant import dequantize


class GGUFCheckpoint:
    """See Checkpoint. Opening reads the header only; digest is computed when first asked for."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = GGUFFile(path)
        self.metadata = self.file.metadata
        if self.metadata.get("split.count", 1) not in (0, 1):
            raise ModelLoadError(
                f"{path}: this file is one part of a model that was split into several.",
                "Join the parts with `llama-gguf-split --merge`, or take a model in one file.",
            )
        shapes = {name: tensor.shape for name, tensor in self.file.tensors.items()}
        self.config = from_gguf(self.metadata, shapes, self._rope_factors(), str(path))
        self._sources, unknown = map_names(list(shapes), self.config)
        if unknown:
            raise ModelLoadError(
                f"{path}: {self.config.family} models have no tensors named {', '.join(unknown[:5])}"
                f"{f' and {len(unknown) - 5} more' if len(unknown) > 5 else ''}.",
                "The file is of a variant that Pagewell does not know; take another conversion of the model.",
            )
        self.n_bytes = sum(tensor.n_bytes for tensor in self.file.tensors.values())

    @cached_property
    def digest(self) -> str:
        tensors = self.file.tensors.values()
        header = self.file.bytes[: self.file.header_bytes].numpy().tobytes()
        return digest_of(header, ((t.name, self.file.bytes[t.offset : t.offset + t.n_bytes]) for t in tensors))

    def names(self) -> tuple[str, ...]:
        return tuple(self._sources)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.file.tensors[self._source(name).gguf_name].shape

    def stored_bytes(self, name: str) -> int:
        return self.file.tensors[self._source(name).gguf_name].n_bytes

    def weight(self, name: str) -> Weight:
        source, tensor = self._source(name), self.file.tensors[self._source(name).gguf_name]
        require_rank(self, name, 2)
        data = self.file.data(tensor.name)
        return Weight(tensor.qtype, (tensor.shape[0], tensor.shape[1]), self._restore(data, source))

    def vector(self, name: str) -> Tensor:
        source, tensor = self._source(name), self.file.tensors[self._source(name).gguf_name]
        require_rank(self, name, 1)
        data = self.file.data(tensor.name)
        values = dequantize(tensor.qtype, data) if tensor.qtype in BLOCKS else data.float()
        values = self._restore(values, source)
        return source.undo(values) if source.undo else values

    def is_stored(self, name: str, data: Tensor) -> bool:
        return data.data_ptr() == self.file.data(self._source(name).gguf_name).data_ptr()

    def read_ahead(self, name: str) -> None:
        pages.read_ahead(self.file.data(self._source(name).gguf_name))

    def give_back(self, name: str) -> None:
        pages.give_back(self.file.data(self._source(name).gguf_name))

    def _restore(self, data: Tensor, source: Source) -> Tensor:
        if not source.n_permuted_heads:
            return data
        if data.shape[0] % (2 * source.n_permuted_heads):
            raise ModelLoadError(
                f"{self.path}: the {data.shape[0]} rows of {source.gguf_name} are not {source.n_permuted_heads} heads.",
                "The file is damaged; download it again.",
            )
        return restore_rows(data, source.n_permuted_heads)

    def _source(self, name: str) -> Source:
        if name not in self._sources:
            raise no_such_tensor(self.path, name)
        return self._sources[name]

    def _rope_factors(self) -> tuple[float, ...] | None:
        tensor = self.file.tensors.get("rope_freqs.weight")
        if tensor is None:
            return None
        if tensor.qtype != "F32" or len(tensor.shape) != 1:
            raise ModelLoadError(f"{self.path}: rope_freqs.weight is not a vector of F32.", "Take another conversion.")
        return tuple(self.file.data(tensor.name).tolist())
