"""Caches as the cases of conformance.py have them: what nothing has written is NaN, or in int8 has scales that are."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import OpSpec, Scales


def new_caches(spec: OpSpec, n_blocks: int, block_size: int, n_kv_heads: int, *, by_dims: bool) -> tuple[Tensor, Tensor]:
    """k and v [n_blocks, block_size, Hkv, D] full of NaN, or in int8 of -128, which is never written.

    by_dims: a block's keys lie in memory as [Hkv, D, block_size], its values as [Hkv, block_size, Dv]. Otherwise, where the spec
    has a size of values below that of keys, values are the end of the keys.
    """
    unused = torch.nan if spec.kv_dtype.is_floating_point else -128
    d, d_v = spec.head_size, spec.value_size or spec.head_size
    if by_dims:
        k = torch.full((n_blocks, n_kv_heads, d, block_size), unused, dtype=spec.kv_dtype).permute(0, 3, 1, 2)
        return k, torch.full((n_blocks, n_kv_heads, block_size, d_v), unused, dtype=spec.kv_dtype).transpose(1, 2)
    k = torch.full((n_blocks, block_size, n_kv_heads, d), unused, dtype=spec.kv_dtype)
    return k, k[..., -d_v:] if ends_keys(spec, by_dims=by_dims) else torch.full((*k.shape[:3], d_v), unused, dtype=spec.kv_dtype)


def ends_keys(spec: OpSpec, *, by_dims: bool) -> bool:
    """Whether values are the end of the keys."""
    return not by_dims and spec.value_size is not None and spec.value_size < spec.head_size


def new_scales(spec: OpSpec, n_blocks: int, block_size: int, n_kv_heads: int, *, by_dims: bool) -> Scales | None:
    """Of new_caches in int8, full of NaN; None for others. by_dims: a block's lie in memory as [Hkv, block_size]."""
    if spec.kv_dtype != torch.int8:
        return None
    shape = (n_blocks, n_kv_heads, block_size) if by_dims else (n_blocks, block_size, n_kv_heads)
    k, v = torch.full((2, *shape), torch.nan).unbind()
    if ends_keys(spec, by_dims=by_dims):
        return k, k
    return (k.transpose(1, 2), v.transpose(1, 2)) if by_dims else (k, v)


def set_random(caches: tuple[Tensor, Tensor], scales: Scales | None, where: tuple[Tensor, ...], g: torch.Generator) -> None:
    """Keys and values of about unit size at the positions `where` (blocks, offsets); of int8 every one that can be written."""
    for i, cache in enumerate(caches):
        shape = cache[where].shape
        if scales is None:
            cache[where] = torch.randn(shape, generator=g).to(cache.dtype)
        else:
            cache[where] = torch.randint(-127, 128, shape, dtype=torch.int8, generator=g)
            scales[i][where] = torch.rand(shape[:-1], generator=g) / 50
