"""HalfSplit: a checkpoint of a family whose heads turn in neighbouring pairs, in the order of all the others.

The operators turn dim i of a head with dim i + R / 2 (kernels/ops.py, RopeAndWriteKV); Cohere, GLM, ERNIE and Llama 4 turn 2 i
with 2 i + 1. Dims of q and k in another order, alike, give the same scores, so that their rows are moved once, at load.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from engine.weights.checkpoint import Checkpoint
from kernels.ops import Weight

_INTERLEAVED = {"cohere", "cohere2", "glm", "glm4", "ernie4_5", "ernie4_5_moe", "llama4"}
_HEADS = re.compile(r"model\.layers\.\d+\.self_attn\.([qk])_(proj|norm)\.(?:weight|bias)")


def half_split(data: Tensor, n_heads: int, rotary_dim: int) -> Tensor:
    """data [heads * D, ...], of any type, blocks included, with the first rotary_dim rows of each head in pairs (2 i, 2 i + 1)
    -> a copy where they are (i, i + rotary_dim / 2); a head's other rows stay.
    """
    head_dim = data.shape[0] // n_heads
    order = torch.arange(head_dim)
    order[:rotary_dim] = order[:rotary_dim].view(-1, 2).T.flatten()
    rows = (torch.arange(0, data.shape[0], head_dim)[:, None] + order).flatten()
    return data[rows]


class HalfSplit:
    """See Checkpoint; what is not said here is the wrapped one's."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        config = checkpoint.config
        self._n_heads = {"q": config.n_heads, "k": config.n_kv_heads}
        self._rotary_dim = next((rope.rotary_dim for rope in config.distinct_ropes), 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._checkpoint, name)

    def weight(self, name: str) -> Weight:
        weight, heads = self._checkpoint.weight(name), _HEADS.fullmatch(name)
        if not heads:
            return weight
        if heads[2] == "norm":  # a row for each head
            return weight.map(lambda data: half_split(data.T, 1, self._rotary_dim).T.contiguous())
        return weight.map(lambda data: half_split(data, self._n_heads[heads[1]], self._rotary_dim))

    def vector(self, name: str) -> Tensor:
        vector, heads = self._checkpoint.vector(name), _HEADS.fullmatch(name)
        return half_split(vector, self._n_heads[heads[1]], self._rotary_dim) if heads else vector


def in_half_split_order(checkpoint: Checkpoint) -> Checkpoint:
    return HalfSplit(checkpoint) if checkpoint.config.family in _INTERLEAVED else checkpoint
