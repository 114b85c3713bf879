"""The tensors behind block ids: KVStorage of attention layers, JoinedStorage of those whose heads differ, StateStorage of
recurrent ones, GroupStorage of a whole model's groups; and HostStorage: those behind the slots of host memory.
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.kv.groups import KVGroup
from engine.types import Moves
from engine.weights.config import KVShape
from kernels.ops import OpSpec, Scales
from kernels.registry import resolve

Caches = tuple[Tensor, Tensor, Scales | None]
"""k and v of one layer, [n_blocks, block_size, heads, dims] with any strides, and the scales of int8 ones. v of a latent layer
is a part of k."""


def token_bytes(shape: KVShape, dtype: torch.dtype) -> int:
    """What the keys and values of one token take in one layer, with their scales."""
    scale_bytes = torch.float32.itemsize if dtype == torch.int8 else 0
    dims = (shape.key_dim,) if shape.latent else (shape.key_dim, shape.value_dim)
    return shape.n_heads * sum(of_one * dtype.itemsize + scale_bytes for of_one in dims)


class Storage(Protocol):
    """Of the layers of one group."""

    planes: Sequence[Tensor]
    """All that a block holds: [n_layers, n_blocks, ...] each, without gaps."""
    layout: str
    """The order of a block's dims in memory."""

    def layer(self, i: int) -> tuple:
        """Of layer i of the group, to read and write in place."""

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks in every layer. Of the pairs (source, destination)
        sources may repeat; no block is both a source and a destination, none is a destination twice.
        """


class KVStorage:
    """Keys and values of attention layers, in n_blocks blocks of block_size tokens.

    On a CPU a block's keys lie as [heads, dims, block_size], so that scores are made for many tokens at once, its values as
    [heads, block_size, dims], and scales as [heads, block_size]. There the memory is only reserved: pages become real as blocks
    are first written. Latent keys, which are values too, lie as values do.
    """

    layout: str

    def __init__(
        self,
        n_layers: int,
        n_blocks: int,
        block_size: int,
        shape: KVShape,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        total, heads, k_dim, v_dim = n_layers * n_blocks, shape.n_heads, shape.key_dim, shape.value_dim
        on_cpu, self._shape = device.type == "cpu", shape
        by_head = (total, heads, block_size) if on_cpu else (total, block_size, heads)

        def plane(*dims: int, dtype: torch.dtype = dtype) -> Tensor:
            made = torch.empty(*by_head, *dims, dtype=dtype, device=device)
            return made.transpose(1, 2) if on_cpu else made

        self.layout = "head, offset, dim" if on_cpu else "offset, head, dim"
        if shape.latent:
            self._k, self._v = plane(k_dim), None
            self.layout = f"latent {self.layout}"
        elif on_cpu:
            self._k = torch.empty(total, heads, k_dim, block_size, dtype=dtype).permute(0, 3, 1, 2)
            self._v = plane(v_dim)
            self.layout = f"k head, dim, offset; v {self.layout}"
        else:
            self._k, self._v = plane(k_dim), plane(v_dim)
        self._scales: Scales | None = None
        if dtype == torch.int8:
            of_k = plane(dtype=torch.float32)
            self._scales = of_k, of_k if shape.latent else plane(dtype=torch.float32)
            self.layout += "; scales float32"
        planes = self._own(self._k, self._v, self._scales)
        # Dims in their order in memory, so that a block of a layer is one piece.
        ordered = [plane.permute(sorted(range(plane.dim()), key=lambda dim: -plane.stride(dim))) for plane in planes]
        self.planes = [plane.view(n_layers, n_blocks, *plane.shape[1:]) for plane in ordered]
        self._firsts = range(0, total, n_blocks)
        self._layers = [self._part(slice(i, i + n_blocks)) for i in self._firsts]
        self._copy = resolve("copy_blocks", OpSpec(device=device.type, kv_dtype=dtype, head_size=k_dim)).fn

    def _own(self, k: Tensor, v: Tensor | None, scales: Scales | None) -> tuple[Tensor, ...]:
        """Each piece of memory once."""
        of_scales = (scales or ())[:1] if self._shape.latent else scales or ()
        return tuple(plane for plane in (k, v, *of_scales) if plane is not None)

    def _part(self, blocks: slice) -> Caches:
        k, scales = self._k[blocks], self._scales and (self._scales[0][blocks], self._scales[1][blocks])
        return k, k[..., -self._shape.value_dim :] if self._v is None else self._v[blocks], scales

    def layer(self, i: int) -> Caches:
        return self._layers[i]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        if pairs:
            in_layers = [(first + a, first + b) for first in self._firsts for a, b in pairs]
            self._copy(self._k, self._v, in_layers, self._scales)


class JoinedStorage:
    """Of layers that share a block table, though their heads differ."""

    def __init__(self, storages: Mapping[tuple[int, ...], KVStorage]) -> None:
        """storages: by the layers of the group that each is of."""
        self.planes = [plane for storage in storages.values() for plane in storage.planes]
        self.layout = " & ".join(storage.layout for storage in storages.values())
        self._storages = tuple(storages.values())
        self._layers = {layer: storage.layer(i) for layers, storage in storages.items() for i, layer in enumerate(layers)}

    def layer(self, i: int) -> Caches:
        return self._layers[i]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        for storage in self._storages:
            storage.copy(pairs)


class StateStorage:
    """States of recurrent layers, float32, n_blocks of them: for each shape a tensor [n_layers, n_blocks, *shape]."""

    layout = "state float32"

    def __init__(self, n_layers: int, n_blocks: int, shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:
        self.planes = [torch.empty(n_layers, n_blocks, *shape, device=device) for shape in shapes]

    def layer(self, i: int) -> tuple[Tensor, ...]:
        """[n_blocks, *shape] each"""
        return tuple(plane[i] for plane in self.planes)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            for plane in self.planes:
                plane[:, destination] = plane[:, source]


class GroupStorage:
    """What all layers of a model remember, group by group."""

    def __init__(self, groups: Mapping[KVGroup, Storage], sources: Sequence[int] = ()) -> None:
        """sources: per layer of the model, the one whose keys and values it reads; none: each its own."""
        self.storages = tuple(groups.values())
        self.layout = " | ".join(storage.layout for storage in self.storages)
        self._places = {
            layer: (g, storage.layer(i))
            for g, (group, storage) in enumerate(groups.items())
            for i, layer in enumerate(group.layers)
        }
        for layer, source in enumerate(sources):
            self._places[layer] = self._places[source]

    def layer(self, i: int) -> tuple:
        """Of layer i of the model, to read and write in place: Caches, or the tensors of a StateStorage."""
        return self._places[i][1]

    def group(self, i: int) -> int:
        """Number of the group to which layer i of the model belongs."""
        return self._places[i][0]

    def copy(self, moves: Sequence[Moves]) -> None:
        """The copies within the device, of each group."""
        for storage, of_group in zip(self.storages, moves, strict=True):
            storage.copy(of_group.copies)


class HostStorage:
    """Copies of blocks in host memory. On a CPU, too, it is only reserved until slots are first written.

    Slots are numbered in one row: those of the first group come first.
    """

    def __init__(self, device: GroupStorage, n_slots: Sequence[int]) -> None:
        """n_slots: of each group."""
        self._storages = device.storages
        self._firsts = [sum(n_slots[:g]) for g in range(len(n_slots))]
        self._planes = []
        for storage, n in zip(self._storages, n_slots, strict=True):
            pinned = storage.planes[0].device.type == "cuda"
            planes = [
                torch.empty(n, plane.shape[0], *plane.shape[2:], dtype=plane.dtype, pin_memory=pinned) for plane in storage.planes
            ]
            self._planes.append(planes)

    def buffers(self, slot: int) -> list[memoryview]:
        """The memory of a slot, one piece for each plane; valid for as long as this lives."""
        g = bisect.bisect_right(self._firsts, slot) - 1
        pieces = [plane[slot - self._firsts[g]] for plane in self._planes[g]]
        return [memoryview((ctypes.c_char * piece.nbytes).from_address(piece.data_ptr())).cast("B") for piece in pieces]

    def move(self, moves: Sequence[Moves]) -> None:
        """Of each group, copy blocks to slots, then slots to blocks; done when it returns."""
        for storage, planes, first, of_group in zip(self._storages, self._planes, self._firsts, moves, strict=True):
            for ours, theirs in zip(planes, storage.planes, strict=True):
                for block_id, slot in of_group.demotions:
                    ours[slot - first].copy_(theirs[:, block_id])
                for slot, block_id in of_group.promotions:
                    theirs[:, block_id].copy_(ours[slot - first])
