"""Operators that write the paged cache, natively; its strides may be any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.cpu.launch import empty, launch, native
from kernels.cpu.planes import TYPES, layout, unsupported_cache
from kernels.cpu.support import require, require_shape, whole, whole_rows
from kernels.ops import Impl, OpSpec, Scales


def rope_and_write_kv(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor | None,
    slots: Tensor,
    scales: Scales | None = None,
) -> Tensor:
    n_rows, n_heads, head_size = q.shape
    require(torch.float32, q=q, k=k, v=v, cos=cos, sin=sin)
    require(torch.int64, positions=positions, slots=slots)
    value_size = (v if v_cache is None else v_cache).shape[-1]
    key_size = head_size if v_cache is not None else head_size - value_size
    if (k is None) != (v is None):
        raise ValueError("Keys are written with their values, or neither is.")
    require_shape((n_rows, k_cache.shape[2], key_size), k=k)
    require_shape((n_rows, k_cache.shape[2], value_size), v=v)
    require_shape((*k_cache.shape[:3], head_size), k_cache=k_cache)
    require_shape((n_rows,), positions=positions, slots=slots)
    require_shape(tuple(cos.shape), sin=sin)
    if 2 * cos.shape[1] > key_size:
        raise ValueError(f"{2 * cos.shape[1]} dims cannot be rotated in heads of {key_size}.")
    if v_cache is not None:
        require_shape((*k_cache.shape[:3], value_size), v_cache=v_cache)
    q, k, v = whole_rows(q), k if k is None else whole_rows(k), v if v is None else whole_rows(v)
    out = empty(n_rows, n_heads, head_size)
    strides = (0 if x is None else x.stride(0) for x in (q, k, v))
    rows = (q, k, v, *strides, n_heads, k_cache.shape[2], head_size, value_size)
    angles = (whole(positions), whole(cos), whole(sin), cos.shape[1])
    planes = layout(k_cache, k_cache if v_cache is None else v_cache, scales)
    launch(native.RopeAndWriteKV, out, *rows, *angles, whole(slots), *planes, v_cache is None, n_rows=n_rows)
    return out


def copy_blocks(k_cache: Tensor, v_cache: Tensor | None, pairs: Sequence[tuple[int, int]], scales: Scales | None = None) -> None:
    """ValueError for a cache whose blocks do not lie one after the other, each without gaps."""
    if not pairs:
        return
    planes = (k_cache, *(scales or ())[:1]) if v_cache is None else (k_cache, v_cache, *(scales or ()))
    for cache in planes:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(cache.shape[1:], cache.stride()[1:], strict=True))
        if not extent == cache.stride(0) == cache[0].numel():
            raise ValueError(f"Blocks of shape {tuple(cache.shape[1:])} with strides {cache.stride()} are not whole in memory.")
    native.copy_blocks([(cache.data_ptr(), cache.stride(0) * cache.itemsize) for cache in planes], list(pairs))


_SPECS = tuple(
    OpSpec(dtype=torch.float32, kv_dtype=kv, head_size=head, value_size=values)
    for kv in TYPES
    for head, values in ((20, None), (64, None), (128, None), (512, None), (576, 512), (192, 128), (36, 20))
)

IMPLS = (
    Impl("rope_and_write_kv", "cpp", rope_and_write_kv, unsupported_cache, _SPECS),
    Impl("copy_blocks", "cpp", copy_blocks, unsupported_cache, _SPECS),
)
