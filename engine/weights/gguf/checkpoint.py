"""GGUFCheckpoint: a GGUF file, or one split into several, behind the Checkpoint interface."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from torch import Tensor

from engine.errors import ModelLoadError
from engine.weights import pages
from engine.weights.checkpoint import digest_of, no_such_tensor, require_rank
from engine.weights.gguf.config import from_gguf
from engine.weights.gguf.files import GGUFFiles
from engine.weights.gguf.names import Source, map_names, restore_rows
from kernels.ops import BLOCKS, Weight
from kernels.reference.dequant import dequantize


class GGUFCheckpoint:
    """See Checkpoint. Opening reads the header only; digest is computed when first asked for."""

    kind = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = GGUFFiles(path)
        self.metadata = self.files.metadata
        shapes = {name: tensor.shape for name, tensor in self.files.tensors.items()}
        self.config = from_gguf(self.metadata, shapes, self._factors("rope_freqs.weight"), str(path), self._longrope_factors())
        self._sources, unknown = map_names(list(shapes), self.config)
        if unknown:
            raise ModelLoadError(
                f"{path}: {self.config.family} models have no tensors named {', '.join(unknown[:5])}"
                f"{f' and {len(unknown) - 5} more' if len(unknown) > 5 else ''}.",
                "The file is of a variant that Pagewell does not know; take another conversion of the model.",
            )
        self.n_bytes = sum(tensor.n_bytes for tensor in self.files.tensors.values())

    @cached_property
    def digest(self) -> str:
        return digest_of(*self.files.samples())

    def names(self) -> tuple[str, ...]:
        return tuple(self._sources)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.files.tensors[self._source(name).gguf_name].shape

    def stored_bytes(self, name: str) -> int:
        return self.files.tensors[self._source(name).gguf_name].n_bytes

    def weight_bytes(self, name: str) -> int:
        return self.stored_bytes(name)

    def unpacking_bytes(self, name: str) -> int:
        return 0

    def qtype(self, name: str) -> str:
        return self.files.tensors[self._source(name).gguf_name].qtype

    def weight(self, name: str) -> Weight:
        source, tensor = self._source(name), self.files.tensors[self._source(name).gguf_name]
        require_rank(self, name, 2, 3)
        data = self.files.data(tensor.name).flatten(0, -2)
        return Weight(tensor.qtype, (data.shape[0], tensor.shape[-1]), self._restore(data, source))

    def vector(self, name: str) -> Tensor:
        source, tensor = self._source(name), self.files.tensors[self._source(name).gguf_name]
        require_rank(self, name, 1, 2)
        data = self.files.data(tensor.name)
        values = dequantize(tensor.qtype, data) if tensor.qtype in BLOCKS else data.float()
        values = self._restore(values, source)
        return source.undo(values) if source.undo else values

    def is_stored(self, name: str, data: Tensor) -> bool:
        return data.data_ptr() == self.files.data(self._source(name).gguf_name).data_ptr()

    def read_ahead(self, name: str) -> None:
        pages.read_ahead(self.files.data(self._source(name).gguf_name))

    def give_back(self, name: str) -> None:
        pages.give_back(self.files.data(self._source(name).gguf_name))

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

    def _longrope_factors(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        short, long = (self._factors(f"rope_factors_{name}.weight") for name in ("short", "long"))
        if short is not None and long is not None:
            return short, long
        if short is not None or long is not None:
            what = "of rope_factors_short.weight and rope_factors_long.weight only one is there"
            raise ModelLoadError(f"{self.path}: {what}.", "Take another conversion.")
        return None

    def _factors(self, name: str) -> tuple[float, ...] | None:
        """Of the rotary frequencies."""
        tensor = self.files.tensors.get(name)
        if tensor is None:
            return None
        if tensor.qtype != "F32" or len(tensor.shape) != 1:
            raise ModelLoadError(f"{self.path}: {name} is not a vector of F32.", "Take another conversion.")
        return tuple(self.files.data(tensor.name).tolist())
