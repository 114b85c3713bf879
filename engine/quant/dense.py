"""Dense matrices -> weights of the types in SCALED, tile by tile, so that a matrix is never in memory as float32."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from engine.quant.base import nibbles
from kernels.ops import CODES, SCALED, ZEROS, Weight
from kernels.reference import dequant

_TILE_VALUES = 1 << 19
"""Values quantised at once: 2 MiB of float32, which with what is made of them stay in a core's cache."""
WORKING_BYTES = 16 * _TILE_VALUES * 4
"""At once, of a few threads with a few copies of a tile each."""
_SHRINKS = (1.0, 0.94, 0.88, 0.82, 0.76)
"""Shares of a group's range that are tried for INT4: values cut off at its ends cost less than wider steps between all others."""
_LARGEST_FP8 = 448.0


class Tile(NamedTuple):
    """data as of a Weight, scales and zeros [rows, groups]."""

    data: Tensor
    scales: Tensor
    zeros: Tensor | None = None


def quantized(weight: Weight, qtype: str, group: int) -> Weight:
    """weight: of any type; group: a multiple of GROUP_UNIT that divides its columns."""
    n_out, n_in = weight.shape
    dtype, n_values = SCALED[qtype]
    data = torch.empty(n_out, n_in // n_values, dtype=dtype)
    scales = torch.empty(n_out, n_in // group)
    zeros = torch.empty(scales.shape, dtype=ZEROS[qtype]) if qtype == "INT4" else None
    step = max(1, _TILE_VALUES // n_in)

    def quantize(start: int) -> None:
        rows = slice(start, min(start + step, n_out))
        values = dequant.dense(weight.map(lambda tensor: tensor[rows]))
        tile = _TILES[qtype](values.unflatten(1, (-1, group)))
        data[rows], scales[rows] = tile.data, tile.scales
        if zeros is not None:
            zeros[rows] = tile.zeros

    # Torch's own threads meet after each of the many small steps of a tile, which takes longer than the steps on a busy machine.
    n_threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(n_threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(quantize, range(0, n_out, step)))
    finally:
        torch.set_num_threads(n_threads)  # what a thread sets is also the default of all that start later
    return Weight(qtype, weight.shape, data, scales, zeros)


def _int8(groups: Tensor) -> Tile:
    scales = _nonzero(groups.abs().amax(-1) / 127)
    return Tile((groups / scales.unsqueeze(-1)).round_().to(torch.int8).flatten(1), scales)


def _fp8(groups: Tensor) -> Tile:
    scales = _nonzero(groups.abs().amax(-1) / _LARGEST_FP8)
    return Tile((groups / scales.unsqueeze(-1)).to(torch.float8_e4m3fn).flatten(1), scales)


def _int4(groups: Tensor) -> Tile:
    """Of several scales, with a zero point in the middle or where the range has it, those with the least squared error."""
    low, high = groups.amin(-1).clamp_(max=0), groups.amax(-1).clamp_(min=0)
    middle = torch.full_like(low, 8)
    whole = _nonzero((high - low) / 15)
    points = (-low / whole).round_()
    candidates = [(whole * shrink, points) for shrink in _SHRINKS]
    symmetric = _nonzero(torch.maximum(-low / 8, high / 7))
    candidates += [(symmetric * shrink, middle) for shrink in _SHRINKS]
    least = torch.full_like(low, torch.inf)
    scales, zeros = whole.clone(), points.clone()
    for factors, offsets in candidates:
        error = _fit(groups, factors, offsets)[1]
        better = error < least
        least = torch.where(better, error, least)
        scales, zeros = torch.where(better, factors, scales), torch.where(better, offsets, zeros)
    q = _fit(groups, scales, zeros)[0]
    return Tile(nibbles(q.to(torch.uint8).flatten(1)), scales, zeros.to(torch.uint8))


def _fit(groups: Tensor, scales: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    """(integers from 0 to 15, squared error of each group)"""
    factors, offsets = scales.unsqueeze(-1), zeros.unsqueeze(-1)
    q = (groups / factors).round_().add_(offsets).clamp_(0, 15)
    return q, (q - offsets).mul_(factors).sub_(groups).square_().sum(-1)


def _nf4(groups: Tensor) -> Tile:
    codes = torch.tensor(CODES["NF4"])
    scales = _nonzero(groups.abs().amax(-1))
    q = torch.bucketize(groups / scales.unsqueeze(-1), (codes[1:] + codes[:-1]) / 2, out_int32=True)
    return Tile(nibbles(q.to(torch.uint8).flatten(1)), scales)


def _nonzero(scales: Tensor) -> Tensor:
    """A group of zeros may have any scale but zero."""
    return torch.where(scales > 0, scales, 1.0)


_TILES: dict[str, Callable[[Tensor], Tile]] = {"INT4": _int4, "INT8": _int8, "FP8": _fp8, "NF4": _nf4}
