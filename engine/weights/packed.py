"""How much memory a checkpoint's weights take once operators hold them."""

from __future__ import annotations

import math

from engine.weights.checkpoint import Checkpoint
from kernels.cpu import linear


def packed_bytes(checkpoint: Checkpoint) -> int:
    """Of all tensors, where the native operators pack them: of some types more than the file has, of IQ1 twice as much."""
    total = 0
    for name in checkpoint.names():
        shape = checkpoint.shape(name)
        if len(shape) != 2:
            total += 4 * math.prod(shape)
        elif name != "lm_head.weight" or not checkpoint.config.tie_embeddings:
            total += linear.packed_bytes(checkpoint.qtype(name), checkpoint.weight_bytes(name))
    return total


def making_bytes(checkpoint: Checkpoint, name: str) -> int:
    """What is there of a tensor, beside what becomes of it, while that is made of it, at most."""
    return checkpoint.stored_bytes(name) + checkpoint.unpacking_bytes(name)
