"""Products of which each head has its own matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def heads_linear(x: Tensor, weight: Tensor, kept: int = 0) -> Tensor:
    product = (x[..., kept:].float().transpose(0, 1) @ weight.float()).transpose(0, 1).to(x.dtype)
    return torch.cat((x[..., :kept], product), -1) if kept else product.contiguous()
