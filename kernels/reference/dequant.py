"""Weights to float32; GGUF block formats in the order of operations of llama.cpp's dequantize_row_* (ggml-quants.c).

A block holds its scales and its packed integers; the layouts are the block_* structs of ggml-common.h, little-endian.
Integers are unpacked eight at a time, as bytes of an int64, which is several times faster in torch than byte by byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from kernels.ops import BLOCKS, CODES, DENSE, SCALED, Weight
from kernels.reference.grids import CODED, dequantize_codes

_LOW_NIBBLES = 0x0F0F0F0F0F0F0F0F
_LOWEST_BITS = 0x0101010101010101
_LOW_PAIRS = 0x0303030303030303

IQ4_CODES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the nibbles of IQ4_NL and IQ4_XS stand for: kvalues_iq4nl of ggml-common.h."""

E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Of MXFP4: kvalues_mxfp4 there."""


def dense(weight: Weight, out: Tensor | None = None) -> Tensor:
    """The values of any weight, float32 [out, in], in `out` if given (contiguous); columns are those of x, whatever the order."""
    if weight.qtype in BLOCKS:
        return dequantize(weight.qtype, weight.data, out)
    if out is None:
        out = torch.empty(weight.shape, device=weight.data.device)
    if weight.qtype in DENSE:
        return out.copy_(weight.data)
    if weight.order is not None:
        return out.index_copy_(1, weight.order.long().to(out.device), dense(replace(weight, order=None)))
    numbers = weight.data
    if SCALED[weight.qtype][1] == 2:
        numbers = torch.stack((numbers & 15, numbers >> 4), -1).flatten(1)
    if weight.qtype in CODES:
        numbers = torch.tensor(CODES[weight.qtype], device=out.device)[numbers.int()]
    groups = out.copy_(numbers).view(*weight.scales.shape, weight.group)
    if weight.zeros is not None:
        groups.sub_(weight.zeros.unsqueeze(-1))
    elif weight.qtype == "INT4":
        groups.sub_(8.0)
    groups.mul_(weight.scales.unsqueeze(-1))
    return out


def dequantize(qtype: str, data: Tensor, out: Tensor | None = None) -> Tensor:
    """uint8 [..., bytes of whole blocks] -> float32 [..., values], in `out` if given (contiguous).

    ValueError for an unknown type, for data that is not whole blocks, or for an `out` of another size.
    """
    if qtype not in BLOCKS:
        raise ValueError(f"{qtype} is not a block format; known: {', '.join(BLOCKS)}.")
    n_values, n_bytes = BLOCKS[qtype]
    if data.dtype != torch.uint8 or data.shape[-1] % n_bytes:
        raise ValueError(f"{qtype} needs uint8 rows of whole blocks of {n_bytes} bytes, not {data.dtype} {tuple(data.shape)}.")
    shape = (*data.shape[:-1], data.shape[-1] // n_bytes * n_values)
    if out is None:
        out = torch.empty(shape, device=data.device)
    elif tuple(out.shape) != shape or out.dtype != torch.float32:
        raise ValueError(f"Dequantised values are float32 {shape}, which out {out.dtype} {tuple(out.shape)} is not.")
    blocks = data.reshape(-1, n_bytes)
    if blocks.storage_offset() % 2:
        blocks = blocks.clone()  # fields of most blocks are read in units of two bytes or more
    _DEQUANTIZE[qtype](blocks, out.view(-1, n_values))
    return out


def _words(blocks: Tensor, start: int, stop: int) -> Tensor:
    """Bytes start .. stop of each block as int64 [n, words], copied in the widest units that their alignment allows."""
    for word in (torch.int64, torch.int32, torch.int16):
        size = word.itemsize
        if not (blocks.shape[1] % size or start % size or blocks.storage_offset() % size):
            part = blocks.view(word)[:, start // size : stop // size]
            return part.clone(memory_format=torch.contiguous_format).view(torch.int64)
    raise ValueError(f"Bytes {start} to {stop} of blocks of {blocks.shape[1]} bytes do not lie on even addresses.")


def _half(blocks: Tensor, byte: int) -> Tensor:
    """The float16 at this byte of each block, as float32 [n, 1]."""
    return blocks[:, byte : byte + 2].view(torch.float16).float()


def _nibbles(packed: Tensor, n_groups: int) -> Tensor:
    """packed int64 [n, w], in groups -> int64 [n, groups, 2, w / groups]: a group's low halves come before its high ones."""
    packed = packed.unflatten(1, (n_groups, packed.shape[1] // n_groups))
    halves = packed.new_empty(*packed.shape[:2], 2, packed.shape[2])
    torch.bitwise_and(packed, _LOW_NIBBLES, out=halves[:, :, 0])
    torch.bitwise_and(packed >> 4, _LOW_NIBBLES, out=halves[:, :, 1])
    return halves


def _write(words: Tensor, out: Tensor, zero: int = 0) -> None:
    """Bytes of words, each less than 128, minus the zero point -> out; subtracted while they are a quarter of the size."""
    integers = words.view(out.shape[0], out.shape[1] // 8).view(torch.int8)
    out.copy_(integers.sub_(zero) if zero else integers)


@cache
def _spread_bits(device: torch.device) -> Tensor:
    """int64 [256]: byte j of entry b is 16 where bit j of b is set."""
    bits = torch.arange(256, dtype=torch.uint8).unsqueeze(1) >> torch.arange(8, dtype=torch.uint8) & 1
    return (bits << 4).view(torch.int64).flatten().to(device)


def _fifth_bits(blocks: Tensor, byte: int) -> Tensor:
    """The 32 bits that start at this byte, each worth 16: int64 [n, 4], a byte for each bit."""
    packed = blocks.view(torch.int16)[:, byte // 2 : byte // 2 + 2].contiguous().view(torch.uint8)
    return _spread_bits(blocks.device).index_select(0, packed.flatten().int()).view(-1, 4)


def _q4_0(blocks: Tensor, out: Tensor) -> None:
    _write(_nibbles(_words(blocks, 2, 18), 1), out, zero=8)
    out.mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor, out: Tensor) -> None:
    _write(_nibbles(_words(blocks, 4, 20), 1), out)
    out.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: Tensor, out: Tensor) -> None:
    _write(_nibbles(_words(blocks, 6, 22), 1).view(-1, 4) | _fifth_bits(blocks, 2), out, zero=16)
    out.mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor, out: Tensor) -> None:
    _write(_nibbles(_words(blocks, 8, 24), 1).view(-1, 4) | _fifth_bits(blocks, 4), out)
    out.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: Tensor, out: Tensor) -> None:
    out.copy_(_words(blocks, 2, 34).view(torch.int8))
    out.mul_(_half(blocks, 0))


def _scale_k(blocks: Tensor, out: Tensor) -> None:
    """Integers in place -> d * scale * q - dmin * minimum for each of the eight sub-blocks of 32.

    Scales and minimums are of 6 bits, packed into 12 bytes as get_scale_min_k4 of ggml-quants.c unpacks them.
    """
    packed = blocks[:, 4:16].contiguous()
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), 1) * _half(blocks, 0)
    minimums = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), 1) * _half(blocks, 2)
    out.view(-1, 8, 32).mul_(scales.unsqueeze(-1)).sub_(minimums.unsqueeze(-1))


def _q4_k(blocks: Tensor, out: Tensor) -> None:
    _write(_nibbles(_words(blocks, 16, 144), 4), out)
    _scale_k(blocks, out)


def _q5_k(blocks: Tensor, out: Tensor) -> None:
    shifts = torch.arange(8, device=blocks.device).view(8, 1)
    fifth = (_words(blocks, 16, 48).unsqueeze(1) >> shifts & _LOWEST_BITS) << 4
    _write(_nibbles(_words(blocks, 48, 176), 4).view(-1, 8, 4) | fifth, out)
    _scale_k(blocks, out)


def _q6_k(blocks: Tensor, out: Tensor) -> None:
    shifts = torch.arange(0, 8, 2, device=blocks.device).view(4, 1)
    high = (_words(blocks, 128, 192).view(-1, 2, 1, 4) >> shifts & _LOW_PAIRS) << 4
    _write(_nibbles(_words(blocks, 0, 128), 2).view(-1, 2, 4, 4) | high, out, zero=32)
    scales = blocks[:, 192:208].contiguous().view(torch.int8) * _half(blocks, 208)
    out.view(-1, 16, 16).mul_(scales.unsqueeze(-1))


def _pairs(blocks: Tensor, start: int, stop: int) -> Tensor:
    """Numbers of two bits, four to a byte and 32 bytes apart, as a byte each: int64 [n, bytes / 32, 4, 4]."""
    shifts = torch.arange(0, 8, 2, device=blocks.device).view(4, 1)
    return _words(blocks, start, stop).unflatten(1, (-1, 1, 4)) >> shifts & _LOW_PAIRS


def _q2_k(blocks: Tensor, out: Tensor) -> None:
    _write(_pairs(blocks, 16, 80), out)
    scales, minimums = (blocks[:, :16] & 15) * _half(blocks, 80), (blocks[:, :16] >> 4) * _half(blocks, 82)
    out.view(-1, 16, 16).mul_(scales.unsqueeze(-1)).sub_(minimums.unsqueeze(-1))


def _q3_k(blocks: Tensor, out: Tensor) -> None:
    shifts = torch.arange(8, device=blocks.device).view(8, 1)
    high = (_words(blocks, 0, 32).unsqueeze(1) >> shifts & _LOWEST_BITS) << 2
    _write(_pairs(blocks, 32, 96).view(-1, 8, 4) | high, out, zero=4)
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    scales = torch.cat((low & 15, low >> 4), 1) | torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], 1) << 4
    out.view(-1, 16, 16).mul_(((scales.to(torch.int8) - 32) * _half(blocks, 108)).unsqueeze(-1))


def _write_codes(words: Tensor, codes: tuple[int, ...], out: Tensor) -> None:
    """codes[byte] for each byte of words -> out."""
    places = words.view(out.shape[0], out.shape[1] // 8).view(torch.uint8)
    out.copy_(torch.tensor(codes, dtype=torch.int8, device=out.device)[places.int()])


def _iq4_nl(blocks: Tensor, out: Tensor) -> None:
    _write_codes(_nibbles(_words(blocks, 2, 18), 1), IQ4_CODES, out)
    out.mul_(_half(blocks, 0))


def _iq4_xs(blocks: Tensor, out: Tensor) -> None:
    _write_codes(_nibbles(_words(blocks, 8, 136), 8), IQ4_CODES, out)
    low = torch.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), -1).flatten(1)
    high = blocks[:, 2:4].view(torch.int16).int() >> torch.arange(0, 16, 2, device=blocks.device) & 3
    scales = (low | high << 4) - 32
    out.view(-1, 8, 32).mul_((scales * _half(blocks, 0)).unsqueeze(-1))


def _mxfp4(blocks: Tensor, out: Tensor) -> None:
    """The scale is half of what its E8M0 means, and the numbers are doubled, so that they are integers."""
    _write_codes(_nibbles(blocks[:, 1:].clone(memory_format=torch.contiguous_format).view(torch.int64), 1), E2M1_DOUBLED, out)
    exponent = blocks[:, :1].int()
    scales = torch.where(exponent < 2, 0x200000 << exponent.clamp(max=1), (exponent - 1) << 23)
    out.mul_(scales.view(torch.float32))


def _tq1_0(blocks: Tensor, out: Tensor) -> None:
    """Five digits of base 3 to a byte, four in the last ones, as a fraction of 256: tripled, it has a digit above the byte."""
    powers = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8, device=blocks.device).view(5, 1)
    parts = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    digits = [(blocks[:, start:stop].unsqueeze(1) * powers[:n]).flatten(1) for start, stop, n in parts]
    out.copy_((torch.cat(digits, 1).to(torch.int16) * 3 >> 8) - 1)
    out.mul_(_half(blocks, 52))


def _tq2_0(blocks: Tensor, out: Tensor) -> None:
    _write(_pairs(blocks, 0, 64), out, zero=1)
    out.mul_(_half(blocks, 64))


_DEQUANTIZE: dict[str, Callable[[Tensor, Tensor], None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    **{qtype: partial(dequantize_codes, qtype) for qtype in CODED},
}
