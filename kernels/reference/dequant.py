"""GGUF block formats to float32, in the order of operations of llama.cpp's dequantize_row_* (ggml-quants.c).

A block holds its scales and its packed integers; the layouts are the block_* structs of ggml-common.h, little-endian.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.ops import BLOCKS


def dequantize(qtype: str, data: Tensor) -> Tensor:
    """uint8 [..., bytes of whole blocks] -> float32 [..., values]. ValueError for an unknown type or a broken block."""
    if qtype not in BLOCKS:
        raise ValueError(f"{qtype} is not a block format; known: {', '.join(BLOCKS)}.")
    n_values, n_bytes = BLOCKS[qtype]
    if data.dtype != torch.uint8 or data.shape[-1] % n_bytes:
        raise ValueError(f"{qtype} needs uint8 rows of whole blocks of {n_bytes} bytes, not {data.dtype} {tuple(data.shape)}.")
    blocks = data.reshape(-1, n_bytes)
    out = torch.empty(blocks.shape[0], n_values, device=data.device)
    _DEQUANTIZE[qtype](blocks, out)
    return out.view(*data.shape[:-1], data.shape[-1] // n_bytes * n_values)


def _half(blocks: Tensor, byte: int) -> Tensor:
    """The float16 at this byte of each block, as float32 [n, 1]."""
    return blocks[:, byte : byte + 2].view(torch.float16).float()


def _nibbles(packed: Tensor, out: Tensor) -> None:
    """packed [n, g, b] -> out [n, g, 2, b]: the low halves of a group's bytes come before the high ones."""
    out[:, :, 0] = packed & 15
    out[:, :, 1] = packed >> 4


def _fifth_bits(blocks: Tensor, byte: int) -> Tensor:
    """The 32 bits that start at this byte, each worth 16: float32 [n, 32]."""
    bits = blocks[:, byte : byte + 4].unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=blocks.device)
    return ((bits & 1) << 4).flatten(1).float()


def _q4_0(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 2:18].unsqueeze(1), out.view(-1, 1, 2, 16))
    out.sub_(8).mul_(_half(blocks, 0))


def _q4_1(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 4:20].unsqueeze(1), out.view(-1, 1, 2, 16))
    out.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q5_0(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 6:22].unsqueeze(1), out.view(-1, 1, 2, 16))
    out.add_(_fifth_bits(blocks, 2)).sub_(16).mul_(_half(blocks, 0))


def _q5_1(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 8:24].unsqueeze(1), out.view(-1, 1, 2, 16))
    out.add_(_fifth_bits(blocks, 4)).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _q8_0(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks[:, 2:34].view(torch.int8))
    out.mul_(_half(blocks, 0))


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The eight 6-bit scales and minimums that Q4_K and Q5_K pack into 12 bytes (get_scale_min_k4); float32 [n, 8] each."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((low & 63, (high & 15) | ((low >> 6) << 4)), 1)
    minimums = torch.cat((middle & 63, (high >> 4) | ((middle >> 6) << 4)), 1)
    return scales.float(), minimums.float()


def _scale_k(blocks: Tensor, out: Tensor) -> None:
    """Integers in place -> d * scale * q - dmin * minimum for each of the eight sub-blocks of 32."""
    scales, minimums = _k_scales(blocks[:, 4:16])
    groups = out.view(-1, 8, 32)
    groups.mul_((scales * _half(blocks, 0)).unsqueeze(-1)).sub_((minimums * _half(blocks, 2)).unsqueeze(-1))


def _q4_k(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 16:144].reshape(-1, 4, 32), out.view(-1, 4, 2, 32))
    _scale_k(blocks, out)


def _q5_k(blocks: Tensor, out: Tensor) -> None:
    _nibbles(blocks[:, 48:176].reshape(-1, 4, 32), out.view(-1, 4, 2, 32))
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device).view(1, 8, 1)
    out.view(-1, 8, 32).add_((blocks[:, 16:48].unsqueeze(1) >> shifts & 1) << 4)
    _scale_k(blocks, out)


def _q6_k(blocks: Tensor, out: Tensor) -> None:
    quarters = out.view(-1, 2, 2, 64)
    _nibbles(blocks[:, 0:128].reshape(-1, 2, 64), quarters)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device).view(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3) << 4
    out.view(-1, 2, 4, 32).add_(high)
    scales = blocks[:, 192:208].view(torch.int8).float() * _half(blocks, 208)
    out.sub_(32).view(-1, 16, 16).mul_(scales.unsqueeze(-1))


_DEQUANTIZE: dict[str, Callable[[Tensor, Tensor], None]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
