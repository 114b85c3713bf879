"""What the native operators have in common: which specs they can do, and how their arguments must lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.launch import missing
from kernels.ops import OpSpec


def unsupported(spec: OpSpec) -> str | None:
    """Why no native operator runs on this spec, or None if device and dtype allow it."""
    if spec.device != "cpu":
        return f"runs on a CPU, not on {spec.device}"
    if missing is not None:
        return missing
    if spec.dtype not in (None, torch.float32):
        return f"computes on float32 activations, not on {str(spec.dtype).removeprefix('torch.')}"
    return None


def require(dtype: torch.dtype, **tensors: Tensor | None) -> None:
    """ValueError naming the first of these that is of another dtype: what native code reads, it takes for this one."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != dtype:
            raise ValueError(f"{name} is of {tensor.dtype}, not of {dtype}.")


def require_shape(shape: tuple[int, ...], **tensors: Tensor | None) -> None:
    """ValueError naming the first of these that is of another shape."""
    for name, tensor in tensors.items():
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} is of shape {tuple(tensor.shape)}, not {shape}.")


def whole(x: Tensor | None) -> Tensor | None:
    """x without gaps in memory: itself, or a copy."""
    return None if x is None else x.contiguous()


def whole_rows(x: Tensor) -> Tensor:
    """x [n, ...] whose rows have no gaps, whatever lies between them: itself, or a copy."""
    return x if x.dim() > 1 and len(x) and x[0].is_contiguous() else x.contiguous()
