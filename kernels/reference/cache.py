"""Operators that write the paged KV cache: rotation with write, and block copies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.ops import Scales

_SATURATING = (torch.float16, torch.float8_e4m3fn)


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
    cos, sin = cos.index_select(0, positions), sin.index_select(0, positions)
    if k is None:
        return _rotate(q, cos, sin)
    written = slots >= 0
    block, offset = slots[written] // k_cache.shape[1], slots[written] % k_cache.shape[1]
    k = _rotate(k, cos, sin)
    parts = ((k_cache, torch.cat((k, v), -1)),) if v_cache is None else ((k_cache, k), (v_cache, v))
    for i, (cache, x) in enumerate(parts):
        if scales is None:
            cache[block, offset] = _within(x[written], cache.dtype)
        else:
            cache[block, offset], scales[i][block, offset] = _quantised(x[written].float())
    return _rotate(q, cos, sin)


def _within(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the dtype of a cache; some end early enough for a key to leave them."""
    most = torch.finfo(dtype).max
    return (x.clamp(-most, most) if dtype in _SATURATING else x).to(dtype)


def _quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., D] -> int8 of the same shape and scales [...]; a value is their product."""
    scale = x.abs().amax(-1) / 127
    scale = torch.where(scale.isfinite(), scale, torch.nan)
    steps = (x / scale.unsqueeze(-1)).round().clamp(-127, 127)
    return torch.where(scale.unsqueeze(-1) > 0, steps, 0.0).to(torch.int8), scale


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, heads, D], cos and sin [n, R / 2]."""
    half = cos.shape[-1]
    cos, sin = cos.float().unsqueeze(1), sin.float().unsqueeze(1)
    first, second, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
    return torch.cat((rotated, rest), -1) if rest.shape[-1] else rotated


def copy_blocks(k_cache: Tensor, v_cache: Tensor | None, pairs: Sequence[tuple[int, int]], scales: Scales | None = None) -> None:
    if not pairs:
        return
    sources, destinations = torch.tensor(pairs, dtype=torch.int64, device=k_cache.device).unbind(1)
    planes = (k_cache, *(scales or ())[:1]) if v_cache is None else (k_cache, v_cache, *(scales or ()))
    for cache in planes:
        cache[destinations] = cache[sources]
