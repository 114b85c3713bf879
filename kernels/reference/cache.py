"""Operators that write the paged KV cache: rotation with write, and block copies."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rope_and_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    cos, sin = cos.index_select(0, positions), sin.index_select(0, positions)
    written = slots >= 0
    block, offset = slots[written] // k_cache.shape[1], slots[written] % k_cache.shape[1]
    k_cache[block, offset] = _rotate(k, cos, sin)[written].to(k_cache.dtype)
    v_cache[block, offset] = v[written].to(v_cache.dtype)
    return _rotate(q, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [n, heads, D], cos and sin [n, R / 2]."""
    half = cos.shape[-1]
    cos, sin = cos.float().unsqueeze(1), sin.float().unsqueeze(1)
    first, second, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
    return torch.cat((rotated, rest), -1) if rest.shape[-1] else rotated


def copy_blocks(k_cache: Tensor, v_cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    if not pairs:
        return
    sources, destinations = torch.tensor(pairs, dtype=torch.int64, device=k_cache.device).unbind(1)
    for cache in (k_cache, v_cache):
        cache[destinations] = cache[sources]
