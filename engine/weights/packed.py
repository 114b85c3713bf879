"""How much memory a checkpoint's weights take once operators hold them."""

from __future__ import annotations

import math

from engine.weights.checkpoint import Checkpoint
from kernels.cpu import linear

_UNPACKED = ("INT4", "NF4", "FP4")
_UNPACKING = 3
"""Integers of a matrix of these types are bytes for a while, in up to so many copies, as they come out of a file's layout."""


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
    n_values = math.prod(checkpoint.shape(name))
    unpacked = _UNPACKING * n_values if checkpoint.kind == "safetensors" and checkpoint.qtype(name) in _UNPACKED else 0
    return checkpoint.stored_bytes(name) + unpacked
