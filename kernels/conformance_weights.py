"""Random weights of every type."""

from __future__ import annotations

import torch

from kernels.ops import BLOCKS, DENSE, GROUP_UNIT, SCALED, Weight

_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where a block's float16 scales lie: random bytes there would be NaN and infinities."""


def random_weight(
    qtype: str, n_out: int, n_in: int, generator: torch.Generator, group: int | None = None, *, zeros: bool = True
) -> Weight:
    """Values of about unit size in any weight type, every bit pattern of the packed integers possible, and of FP8 but for NaN.

    group and zeros are for types in SCALED; of the usual groups, the largest that divides n_in is taken if none is given.
    """
    if qtype in DENSE:
        return Weight(qtype, (n_out, n_in), torch.randn(n_out, n_in, generator=generator).to(DENSE[qtype]))
    if qtype in SCALED:
        group = group or next(size for size in (128, 64, GROUP_UNIT) if n_in % size == 0)
        return _random_scaled(qtype, n_out, n_in, generator, group, zeros=zeros and qtype == "INT4")
    n_values, n_bytes = BLOCKS[qtype]
    blocks = torch.randint(0, 256, (n_out * n_in // n_values, n_bytes), dtype=torch.uint8, generator=generator)
    for byte in _HALVES[qtype]:
        scales = torch.randn(blocks.shape[0], 1, generator=generator) / 64
        blocks[:, byte : byte + 2] = scales.half().view(torch.uint8)
    return Weight(qtype, (n_out, n_in), blocks.view(n_out, -1))


def _random_scaled(qtype: str, n_out: int, n_in: int, generator: torch.Generator, group: int, *, zeros: bool) -> Weight:
    dtype, n_values = SCALED[qtype]
    data = torch.randint(0, 256, (n_out, n_in // n_values), dtype=torch.uint8, generator=generator)
    if qtype == "FP8":
        data[data & 127 == 127] = 0
    groups = n_out, n_in // group
    return Weight(
        qtype,
        (n_out, n_in),
        data.view(dtype),
        torch.randn(groups, generator=generator) * {"INT4": 1 / 8, "INT8": 1 / 64, "FP8": 1 / 64, "NF4": 1.0}[qtype],
        torch.randint(0, 17, groups, dtype=torch.uint8, generator=generator) if zeros else None,
    )
