"""KVStorage: the tensors behind the block ids, and HostStorage: those behind the slots of host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.types import Moves
from kernels.ops import OpSpec, Scales
from kernels.registry import resolve

Caches = tuple[Tensor, Tensor, Scales | None]
"""k and v of one layer, [n_blocks, block_size, n_kv_heads, head_dim] with any strides, and the scales of int8 ones."""


def token_bytes(n_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """What the keys and values of one token take in one layer, with their scales."""
    scale_bytes = torch.float32.itemsize if dtype == torch.int8 else 0
    return 2 * n_kv_heads * (head_dim * dtype.itemsize + scale_bytes)


class KVStorage:
    """Keys and values of all layers, in n_blocks blocks of block_size tokens.

    On a CPU a block's keys lie as [n_kv_heads, head_dim, block_size], so that scores are made for many tokens at once, its
    values as [n_kv_heads, block_size, head_dim], and scales as [n_kv_heads, block_size]. There the memory is only reserved:
    pages become real as blocks are first written.
    """

    layout: str
    """The order of a block's dims in memory."""

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
        total = n_layers * n_blocks
        if device.type == "cpu":
            self._k = torch.empty(total, n_kv_heads, head_dim, block_size, dtype=dtype).permute(0, 3, 1, 2)
            self._v = torch.empty(total, n_kv_heads, block_size, head_dim, dtype=dtype).transpose(1, 2)
            self.layout = "k head, dim, offset; v head, offset, dim"
        else:
            shape = (total, block_size, n_kv_heads, head_dim)
            self._k, self._v = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
            self.layout = "offset, head, dim"
        self._scales: Scales | None = None
        if dtype == torch.int8:
            self._scales = self._new_scales(total, block_size, n_kv_heads, device)
            self.layout += "; scales float32"
        planes = (self._k, self._v, *(self._scales or ()))
        # Dims in their order in memory, so that a block of a layer is one piece.
        ordered = [plane.permute(sorted(range(plane.dim()), key=lambda dim: -plane.stride(dim))) for plane in planes]
        self.planes = [plane.view(n_layers, n_blocks, *plane.shape[1:]) for plane in ordered]
        """All keys, values and scales: [n_layers, n_blocks, ...] each, without gaps."""
        self._firsts = range(0, total, n_blocks)
        self._layers = [self._part(slice(i, i + n_blocks)) for i in self._firsts]
        self._copy = resolve("copy_blocks", OpSpec(device=device.type, kv_dtype=dtype, head_size=head_dim)).fn

    @staticmethod
    def _new_scales(total: int, block_size: int, n_kv_heads: int, device: torch.device) -> Scales:
        if device.type == "cpu":
            k, v = (torch.empty(total, n_kv_heads, block_size).transpose(1, 2) for _ in range(2))
        else:
            k, v = (torch.empty(total, block_size, n_kv_heads, device=device) for _ in range(2))
        return k, v

    def _part(self, blocks: slice) -> Caches:
        scales = self._scales and (self._scales[0][blocks], self._scales[1][blocks])
        return self._k[blocks], self._v[blocks], scales

    def layer(self, i: int) -> Caches:
        """Of layer i, to read and write in place."""
        return self._layers[i]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in every layer. Of the pairs (source, destination)
        sources may repeat; no block is both a source and a destination, none is a destination twice.
        """
        if pairs:
            in_layers = [(first + a, first + b) for first in self._firsts for a, b in pairs]
            self._copy(self._k, self._v, in_layers, self._scales)


class HostStorage:
    """Copies of blocks in host memory. On a CPU, too, it is only reserved until slots are first written."""

    def __init__(self, kv: KVStorage, n_slots: int) -> None:
        pinned = kv.planes[0].device.type == "cuda"
        self._kv = kv
        self._planes = [
            torch.empty(n_slots, plane.shape[0], *plane.shape[2:], dtype=plane.dtype, pin_memory=pinned) for plane in kv.planes
        ]

    def buffers(self, slot: int) -> list[memoryview]:
        """The memory of a slot, one piece for each plane; valid for as long as this lives."""
        pieces = [plane[slot] for plane in self._planes]
        return [memoryview((ctypes.c_char * piece.nbytes).from_address(piece.data_ptr())).cast("B") for piece in pieces]

    def move(self, moves: Moves) -> None:
        """Copy blocks to slots, then slots to blocks; done when it returns."""
        for ours, theirs in zip(self._planes, self._kv.planes, strict=True):
            for block_id, slot in moves.demotions:
                ours[slot].copy_(theirs[:, block_id])
            for slot, block_id in moves.promotions:
                theirs[:, block_id].copy_(ours[slot])
