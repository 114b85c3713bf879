"""Attention over a paged KV cache: gather a sequence's keys and values, then softmax(q k^T) v with explicit masks."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops import Scales

_MOST_SCORES = 1 << 22
"""Scores held at once (16 MiB); longer prompts are walked in tiles of query rows."""


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: Scales | None = None,
    sinks: Tensor | None = None,
    chunked: bool = False,
) -> Tensor:
    out = q.new_empty(*q.shape[:2], v_cache.shape[-1])
    starts, contexts = query_starts.tolist(), context_lens.tolist()
    for i, context in enumerate(contexts):
        n_query = starts[i + 1] - starts[i]
        if n_query == 0:
            continue
        first_position = context - n_query
        tile = max(1, _MOST_SCORES // (q.shape[1] * context))
        for row in range(0, n_query, tile):
            rows = slice(starts[i] + row, starts[i] + min(row + tile, n_query))
            low = first_position + row
            high = low + rows.stop - rows.start
            seen_from = int(_first_seen(torch.tensor(low), window, chunked=chunked))
            k, v = (_gather(cache, block_tables[i], seen_from, high) for cache in (k_cache, v_cache))
            if scales is not None:
                of_k, of_v = (_gather(scale, block_tables[i], seen_from, high) for scale in scales)
                k, v = k * of_k.unsqueeze(-1), v * of_v.unsqueeze(-1)
            positions = torch.arange(low, high, device=q.device)
            begins = _first_seen(positions, window, chunked=chunked)
            out[rows] = _attend(q[rows], k, v, positions - seen_from, begins - seen_from, scale, soft_cap, sinks)
    return out


def _first_seen(positions: Tensor, window: int, *, chunked: bool) -> Tensor:
    """Of queries at these positions: the first position whose key each of them sees."""
    if not window:
        return torch.zeros_like(positions)
    return positions // window * window if chunked else (positions - window + 1).clamp(min=0)


def _gather(cache: Tensor, block_table: Tensor, start: int, stop: int) -> Tensor:
    """Positions start .. stop of one sequence, [stop - start, Hkv, ...] float32."""
    block_size = cache.shape[1]
    first = start // block_size
    blocks = block_table[first : -(-stop // block_size)].long()
    rows = cache[blocks].flatten(0, 1)
    return rows[start - first * block_size : stop - first * block_size].float()


def _attend(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, begins: Tensor, scale: float, soft_cap: float, sinks: Tensor | None
) -> Tensor:
    """q [m, H, D] at positions int64 [m], each of which sees from begins [m] on; k, v [c, Hkv, D or Dv] at positions 0 .. c;
    [m, H, Dv] of q's dtype."""
    m, n_heads, head_size = q.shape
    n_kv_heads = k.shape[1]
    grouped = q.float().view(m, n_kv_heads, n_heads // n_kv_heads, head_size).permute(1, 2, 0, 3)
    scores = grouped.reshape(n_kv_heads, -1, head_size) @ k.permute(1, 2, 0) * scale
    if soft_cap:
        scores = torch.tanh(scores / soft_cap) * soft_cap
    if m > 1:
        key = torch.arange(k.shape[0], device=q.device)
        hidden = (key > positions.unsqueeze(1)) | (key < begins.unsqueeze(1))
        scores.view(n_kv_heads, -1, m, k.shape[0]).masked_fill_(hidden, -torch.inf)
    if sinks is not None:
        of_rows = sinks.float().view(n_kv_heads, -1, 1).expand(-1, -1, m).reshape(n_kv_heads, -1, 1)
        weights = torch.softmax(torch.cat((scores, of_rows), -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    mixed = weights @ v.transpose(0, 1)
    return mixed.view(n_kv_heads, -1, m, v.shape[-1]).permute(2, 0, 1, 3).reshape(m, n_heads, -1).to(q.dtype)
