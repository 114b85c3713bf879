"""How much memory a checkpoint's weights take once operators hold them."""

from __future__ import annotations

from engine.weights.checkpoint import Checkpoint
from engine.weights.gguf.checkpoint import GGUFCheckpoint
from kernels.cpu import linear


def packed_bytes(checkpoint: Checkpoint) -> int:
    """Of all tensors, where the native operators pack them: of some types more than the file has, of IQ1 twice as much."""
    if not isinstance(checkpoint, GGUFCheckpoint):
        return checkpoint.n_bytes
    return sum(linear.packed_bytes(tensor.qtype, tensor.n_bytes) for tensor in checkpoint.file.tensors.values())
