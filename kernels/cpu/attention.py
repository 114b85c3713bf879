"""Attention over the paged cache, natively.

Any strides will do. In place are read: K whose 16 tokens lie side by side for each dim, V whose dims do, with block size and
head size multiples of 16. Anything else goes through scratch memory, which costs one-row queries a few times as much.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.launch import empty, launch, native
from kernels.cpu.planes import TYPES, layout, unsupported_cache
from kernels.cpu.support import require, require_shape, whole, whole_rows
from kernels.ops import Impl, OpSpec, Scales


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
    """ValueError for query heads that cannot be shared out evenly among the KV heads."""
    n_rows, n_heads, head_size = q.shape
    if n_heads % k_cache.shape[2]:
        raise ValueError(f"{k_cache.shape[2]} KV heads cannot have equal shares of {n_heads} query heads.")
    require(torch.float32, q=q, sinks=sinks)
    require_shape((n_heads,), sinks=sinks)
    require(torch.int32, query_starts=query_starts, context_lens=context_lens, block_tables=block_tables)
    require_shape((len(context_lens) + 1,), query_starts=query_starts)
    q, block_tables = whole_rows(q), whole_rows(block_tables)
    value_size = v_cache.shape[-1]
    require_shape((*k_cache.shape[:3], head_size), k_cache=k_cache)
    out = empty(n_rows, n_heads, value_size)
    sizes = (n_heads, k_cache.shape[2], head_size, value_size)
    tables = (whole(query_starts), whole(context_lens), block_tables, block_tables.stride(0))
    seen = window, soft_cap, whole(sinks), chunked
    args = (out, q, q.stride(0), *sizes, *layout(k_cache, v_cache, scales), *tables, scale, *seen)
    launch(native.PagedAttention, *args, n_rows=n_rows, n_seqs=len(context_lens))
    return out


_F32 = torch.float32
_SPECS = (
    *(OpSpec(dtype=_F32, kv_dtype=kv, head_size=head) for kv in TYPES for head in (16, 20, 64, 72, 80, 96, 128, 256, 512)),
    *(
        OpSpec(dtype=_F32, kv_dtype=kv, head_size=head, value_size=values)
        for kv in TYPES
        for head, values in ((576, 512), (192, 128), (72, 40), (64, 128), (36, 33))
    ),
    *(
        OpSpec(dtype=_F32, kv_dtype=kv, head_size=64, window=window, soft_cap=cap)
        for kv in TYPES
        for window, cap in ((True, False), (False, True), (True, True))
    ),
    *(OpSpec(dtype=_F32, kv_dtype=kv, head_size=64, window=True, chunked=True) for kv in TYPES),
)

IMPLS = (Impl("paged_attention", "cpp", paged_attention, unsupported_cache, _SPECS),)
