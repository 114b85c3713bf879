"""KVStorage: the tensors behind the block ids."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.ops import OpSpec
from kernels.registry import resolve


class KVStorage:
    """Keys and values of all layers, in n_blocks blocks of block_size tokens.

    On a CPU the memory is only reserved: pages become real as blocks are first written.
    """

    def __init__(
        self,
        n_layers: int,
        n_blocks: int,
        block_size: int,
        n_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (n_layers, 2, n_blocks, block_size, n_kv_heads, head_dim)
        self.data = torch.empty(shape, dtype=dtype, device=device)
        self._layers = [(layer[0], layer[1]) for layer in self.data]
        self._copy = resolve("copy_blocks", OpSpec(device=device.type, kv_dtype=dtype, head_size=head_dim)).fn

    def layer(self, i: int) -> tuple[Tensor, Tensor]:
        """k and v of layer i, [n_blocks, block_size, n_kv_heads, head_dim], to read and write in place."""
        return self._layers[i]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in every layer. Of the pairs (source, destination)
        sources may repeat; no block is both a source and a destination, none is a destination twice.
        """
        if pairs:
            for k, v in self._layers:
                self._copy(k, v, pairs)
