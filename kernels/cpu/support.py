"""What the native operators have in common when they declare what they can do."""

from __future__ import annotations

import torch

from kernels.cpu.launch import missing
from kernels.ops import OpSpec


def unsupported(spec: OpSpec) -> str | None:
    """Why no native operator runs on this spec, or None if device and dtype allow it."""
    if spec.device != "cpu":
        return f"runs on a CPU, not on {spec.device}"
    if missing is not None:
        return missing
    if spec.dtype not in (None, torch.float32):
        return f"activations are float32, not {str(spec.dtype).removeprefix('torch.')}"
    return None
