"""Operators of one model: resolves names to functions for its device and number formats, once, while it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernels.ops import OpSpec
from kernels.registry import resolve


@dataclass(frozen=True, slots=True)
class Operators:
    device: torch.device
    dtype: torch.dtype
    """Of activations."""
    kv_dtype: torch.dtype

    def get(self, op: str, *, qtype: str | None = None) -> Callable[..., Any]:
        """An operator on activations, and on weights of `qtype` if it takes any. Raises KernelMissing."""
        return resolve(op, OpSpec(device=self.device.type, dtype=self.dtype, qtype=qtype)).fn

    def get_cached(self, op: str, head_size: int, *, window: bool = False, soft_cap: bool = False) -> Callable[..., Any]:
        """An operator on the KV cache. Raises KernelMissing."""
        spec = OpSpec(self.device.type, self.dtype, self.kv_dtype, head_size=head_size, window=window, soft_cap=soft_cap)
        return resolve(op, spec).fn
