"""How the native operators are told about a KV cache."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.launch import native
from kernels.cpu.support import require, require_shape, unsupported
from kernels.ops import OpSpec, Scales

TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float8_e4m3fn: 4, torch.int8: 3}
"""As CacheType of cache.h numbers them."""


def layout(k_cache: Tensor, v_cache: Tensor, scales: Scales | None) -> tuple[list[Tensor], list[list[int]], int, int]:
    """(k and v, and the scales of each if there are any; strides of each; block size; type) of a cache."""
    require(k_cache.dtype, v_cache=v_cache)
    require_shape((*k_cache.shape[:3], v_cache.shape[-1]), v_cache=v_cache)
    if (scales is None) == (k_cache.dtype == torch.int8):
        raise ValueError(f"A cache of {k_cache.dtype} goes {'with' if scales is None else 'without'} scales.")
    for scale in scales or ():
        require(torch.float32, scales=scale)
        require_shape(tuple(k_cache.shape[:3]), scales=scale)
    planes = [k_cache, v_cache, *(scale.unsqueeze(-1) for scale in scales or ())]
    return planes, [list(plane.stride()) for plane in planes], k_cache.shape[1], TYPES[k_cache.dtype]


def unsupported_cache(spec: OpSpec) -> str | None:
    """`unsupported`, and why this cache is not."""
    if spec.kv_dtype not in (None, *TYPES):
        return f"KV cache of {str(spec.kv_dtype).removeprefix('torch.')}"
    most = max(spec.head_size or 0, spec.value_size or 0)
    if native is not None and most > native.MOST_HEAD_SIZE:
        return f"heads of {most} dims, more than {native.MOST_HEAD_SIZE}"
    return unsupported(spec)
