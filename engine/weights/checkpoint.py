"""The interface of an opened checkpoint: a model's configuration and its tensors under Hugging Face's names.

Tensors follow Hugging Face's convention whatever the file: q and k rows in half-split order, gemma's norm weights
without the one that GGUF converters add.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from engine.weights.config import ModelConfig
from kernels.ops import Weight


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
    """A GGUF's metadata, or config.json. Tokenizer arrays of a GGUF are lists."""

    def names(self) -> tuple[str, ...]:
        """Of all tensors that the model's layers may use, e.g. "model.layers.0.self_attn.q_proj.weight"."""
        ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def weight(self, name: str) -> Weight:
        """A 2-D tensor as stored, quantised or dense; a view on the mapped file where no row had to move."""
        ...

    def vector(self, name: str) -> Tensor:
        """A 1-D tensor as float32."""
        ...
