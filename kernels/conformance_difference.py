"""Whether a result is the oracle's, but for rounding."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCES = {
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
    torch.float64: 0.0,
    torch.int32: 0.0,
    torch.int64: 0.0,
}
"""Largest difference allowed, as a share of the largest value of the oracle's result."""

BORDERLINE = 1e-3
"""Share of values of 8 bits that may be a neighbour's: rounding of what they are made of pushes a few over the border between
two."""


def difference(got: Tensor, want: Tensor) -> str | None:
    """What is wrong with a result, or None; NaN must be where the oracle has NaN."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype} {tuple(got.shape)} instead of {want.dtype} {tuple(want.shape)}"
    if not torch.equal(got.isnan(), want.isnan()):
        return f"NaN in {int((got.isnan() != want.isnan()).sum())} wrong places"
    if want.dtype.itemsize == 1:
        steps = (_ordered(got) - _ordered(want)).abs()
        n_off = int((steps > 0).sum())
        far = n_off > BORDERLINE * steps.numel() or bool((steps > 1).any())
        return f"{n_off} of {steps.numel()} values are off, by up to {int(steps.max())}" if far else None
    if not want.numel():
        return None
    elsewhere = (got.isinf() | want.isinf()) & (got != want)
    if elsewhere.any():
        return f"infinities in {int(elsewhere.sum())} wrong places"
    got, want, tolerance = (*(x.double().nan_to_num(0.0, 0.0, 0.0) for x in (got, want)), TOLERANCES[want.dtype])
    error = ((got - want).abs().max() / want.abs().max().clamp(min=1e-30)).item()
    return f"relative error {error:.2e}, allowed {tolerance:.0e}" if error > tolerance else None


def _ordered(x: Tensor) -> Tensor:
    """Whole numbers of which neighbours differ by 1; NaN is 0."""
    if x.dtype == torch.int8:
        return x.int()
    bits = x.view(torch.int8).int()  # numbers of E4M3 are sorted as their bits are, behind the sign
    return torch.where(bits < 0, -(bits + 128), bits).masked_fill(x.isnan(), 0)
