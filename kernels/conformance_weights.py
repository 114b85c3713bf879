"""Random weights of every type."""

from __future__ import annotations

import torch

from kernels.ops import BLOCKS, DENSE, SCALED, ZEROS, Weight

_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"), (0,)),
    "IQ1_M": (),
}
"""Where a block's float16 scales lie: random bytes there would be NaN and infinities."""


_UNIT = {"INT4": 1 / 8, "INT8": 1 / 64, "FP8": 1 / 64, "NF4": 1.0, "FP4": 1.0, "E2M1": 1 / 4}
"""Of the scales of types in SCALED."""


def random_weight(
    qtype: str,
    n_out: int,
    n_in: int,
    generator: torch.Generator,
    group: int | None = None,
    *,
    zeros: bool = True,
    order: bool = False,
) -> Weight:
    """Values of about unit size in any weight type, every bit pattern of the packed integers possible, and of FP8 but for NaN.

    group, zeros and order are for types in SCALED; of the usual groups, the largest that divides n_in is taken if none is given.
    """
    if qtype in DENSE:
        return Weight(qtype, (n_out, n_in), torch.randn(n_out, n_in, generator=generator).to(DENSE[qtype]))
    if qtype in SCALED:
        group = group or next(size for size in (128, 64, 32) if n_in % size == 0)
        return _random_scaled(qtype, n_out, n_in, generator, group, zeros=zeros and qtype in ZEROS, order=order)
    n_values, n_bytes = BLOCKS[qtype]
    blocks = torch.randint(0, 256, (n_out * n_in // n_values, n_bytes), dtype=torch.uint8, generator=generator)
    for byte in _HALVES[qtype]:
        scales = torch.randn(blocks.shape[0], 1, generator=generator) / 64
        blocks[:, byte : byte + 2] = scales.half().view(torch.uint8)
    if qtype == "IQ1_M":  # whose scale is in the highest nibbles of four words: 2^-7 to 2^-3, of either sign
        blocks[:, 55] = blocks[:, 55] & 143 | 32
    if qtype == "MXFP4":
        blocks[:, 0] = torch.randint(118, 127, (blocks.shape[0],), generator=generator)
    return Weight(qtype, (n_out, n_in), blocks.view(n_out, -1))


def _random_scaled(
    qtype: str, n_out: int, n_in: int, generator: torch.Generator, group: int, *, zeros: bool, order: bool
) -> Weight:
    dtype, n_values = SCALED[qtype]
    data = torch.randint(0, 256, (n_out, n_in // n_values), dtype=torch.uint8, generator=generator)
    if qtype == "FP8":
        data[data & 127 == 127] = 0
    groups = n_out, n_in // group
    first, last = (0, 16) if qtype == "INT4" else (-128, 128)
    return Weight(
        qtype,
        (n_out, n_in),
        data.view(dtype),
        torch.randn(groups, generator=generator) * _UNIT[qtype],
        torch.randint(first, last + 1, groups, generator=generator).to(ZEROS[qtype]) if zeros else None,
        torch.randperm(n_in, generator=generator).int() if order else None,
    )
