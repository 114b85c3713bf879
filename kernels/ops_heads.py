"""A part of the contract in ops.py: what attention over latents, and layers with a factor, need. Letters and rules are its."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class HeadsLinear(Protocol):
    """x [n, H, kept + in], weight [H, in, out] of a dtype in DENSE -> [n, H, kept + out]: of each head the first `kept` dims as
    they are, and behind them the others times its own matrix.
    """

    def __call__(self, x: Tensor, weight: Tensor, kept: int = 0) -> Tensor: ...


class AddScaled(Protocol):
    """x and y [n, h] -> [n, h]: (x + y) * factor, rounded after each."""

    def __call__(self, x: Tensor, y: Tensor, factor: float) -> Tensor: ...
