"""What weights take in memory is known before they are packed."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.gguf.checkpoint import GGUFCheckpoint
from engine.weights.packed import packed_bytes
from tests import models


def test_types_that_are_packed_wider_than_they_are_stored_are_counted_so() -> None:
    checkpoint = GGUFCheckpoint(models.smollm2())
    assert packed_bytes(checkpoint) == checkpoint.n_bytes
    name, tensor = next((name, tensor) for name, tensor in checkpoint.files.tensors.items() if tensor.qtype == "Q4_1")
    checkpoint.files.tensors[name] = replace(tensor, qtype="IQ1_M", n_bytes=560)
    assert packed_bytes(checkpoint) == checkpoint.n_bytes - tensor.n_bytes + 1140
