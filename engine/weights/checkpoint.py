"""The interface of an opened checkpoint: a model's configuration and its tensors under Hugging Face's names.

Tensors follow Hugging Face's convention whatever the file: q and k rows in half-split order (from open_checkpoint also those of
families that turn neighbouring pairs), gemma's norm weights without the one that GGUF converters add.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from engine.errors import ModelLoadError
from engine.weights.config import ModelConfig
from kernels.ops import Weight

_SAMPLE_BYTES = 4096


class Checkpoint(Protocol):
    """Raises ModelLoadError, naming the file and a remedy, when a tensor is missing or not as expected."""

    path: Path
    config: ModelConfig
    kind: str
    """"gguf" or "safetensors"."""
    digest: str
    """Hex SHA-256 over configuration, names, shapes, types and samples of the bytes of every tensor."""
    n_bytes: int
    """Of all tensors, as stored."""
    metadata: Mapping[str, Any]
    """A GGUF's metadata, or config.json. Arrays of a GGUF are lists of strings or memoryviews of numbers."""

    def names(self) -> tuple[str, ...]:
        """Of all tensors that the model's layers may use, e.g. "model.layers.0.self_attn.q_proj.weight"."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def stored_bytes(self, name: str) -> int: ...

    def weight_bytes(self, name: str) -> int:
        """Of what `weight` gives, at most; as much as the file takes where it gives a view on it."""
        ...

    def unpacking_bytes(self, name: str) -> int:
        """Of what is there while `weight` makes it, beside the file's bytes and the result, at most."""
        ...

    def qtype(self, name: str) -> str:
        """Of what `weight` gives, known without reading it."""
        ...

    def weight(self, name: str) -> Weight:
        """A 2-D tensor as stored, quantised or dense; a view on the mapped file where no row had to move.

        Of one of three dims, the matrices one below the other.
        """
        ...

    def vector(self, name: str) -> Tensor:
        """A tensor of one dim, or of more than two, as float32; of two from GGUF files, whose converters leave out dims of 1."""
        ...

    def is_stored(self, name: str, data: Tensor) -> bool:
        """Whether `data`, all of a tensor, is what lies in the mapped file, and no copy of it."""
        ...

    def read_ahead(self, name: str) -> None:
        """Have the disk begin to read a tensor that will soon be asked for, where the system can."""
        ...

    def give_back(self, name: str) -> None:
        """Take a tensor's pages out of the process, where the system can; they come back when they are read again."""
        ...


def digest_of(configuration: bytes, tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Hex SHA-256 of a checkpoint: its configuration, and of each tensor (name, bytes as uint8) the size and three samples.

    A file of many gigabytes is told apart in milliseconds; another training, precision or conversion changes the samples.
    """
    digest = sha256(len(configuration).to_bytes(8, "little") + configuration)
    for name, raw in tensors:
        digest.update(f"\0{name}\0{raw.numel()}\0".encode())
        for start in (0, raw.numel() // 2, max(0, raw.numel() - _SAMPLE_BYTES)):
            digest.update(raw[start : start + _SAMPLE_BYTES].numpy().tobytes())
    return digest.hexdigest()


def no_such_tensor(path: Path, name: str) -> ModelLoadError:
    return ModelLoadError(f"{path}: the tensor {name} is missing.", "The checkpoint is incomplete; download it again.")


def require_rank(checkpoint: Checkpoint, name: str, n_dims: int, most: int = 0) -> None:
    """most: dims that it may have too."""
    shape = checkpoint.shape(name)
    if len(shape) not in (n_dims, most):
        raise ModelLoadError(
            f"{checkpoint.path}: the tensor {name} has the shape {list(shape)}, but {n_dims} dimension(s) were expected.",
            "The checkpoint is damaged or of another model; download it again.",
        )
