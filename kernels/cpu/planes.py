"""How the native operators are told about a KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.support import unsupported
from kernels.ops import OpSpec

FLOATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
MOST_HEAD_SIZE = 512


def layout(k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, list[int], Tensor, list[int], int, int]:
    """(k, its strides, v, its strides, block size, number format) of caches [n_blocks, block_size, Hkv, D]."""
    return k_cache, list(k_cache.stride()), v_cache, list(v_cache.stride()), k_cache.shape[1], FLOATS[k_cache.dtype]


def unsupported_cache(spec: OpSpec) -> str | None:
    """`unsupported`, and why this cache is not."""
    if spec.kv_dtype not in (None, *FLOATS):
        return f"KV cache of {str(spec.kv_dtype).removeprefix('torch.')}"
    if spec.head_size is not None and spec.head_size > MOST_HEAD_SIZE:
        return f"heads of {spec.head_size} dims, more than {MOST_HEAD_SIZE}"
    return unsupported(spec)
