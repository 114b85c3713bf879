"""Layers with a state, natively."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.cpu.launch import empty, launch, native
from kernels.cpu.support import require, require_shape, unsupported, whole, whole_rows
from kernels.ops import Impl, OpSpec


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    state_ids: Tensor,
    activate: bool = True,
) -> Tensor:
    """ValueError for a convolution over more tokens than native ones are made for."""
    n_channels, width = weight.shape
    require(torch.float32, x=x, weight=weight, bias=bias, state=state)
    require_shape((len(x), n_channels), x=x)
    require_shape((n_channels,), bias=bias)
    require_shape((len(state), n_channels, width - 1), state=state)
    where = _where(state, query_starts, context_lens, state_ids)
    x = whole_rows(x)
    out = empty(len(x), n_channels)
    args = (out, x, x.stride(0), whole(weight), whole(bias), n_channels, width, *where, activate)
    launch(native.CausalConv, *args, n_rows=len(x), n_seqs=len(context_lens))
    return out


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    log_rates: Tensor,
    bias: Tensor,
    state: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    state_ids: Tensor,
    tiled: bool = False,
) -> Tensor:
    where = query_starts, context_lens, state_ids
    return _head_states((q, k, v, a, b), (log_rates, bias, None), state, where, tiled=tiled)


def state_scan(
    x: Tensor,
    steps: Tensor,
    b: Tensor,
    c: Tensor,
    log_rates: Tensor,
    bias: Tensor,
    skip: Tensor,
    state: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    state_ids: Tensor,
) -> Tensor:
    where = query_starts, context_lens, state_ids
    return _head_states((c, b, x, steps), (log_rates, bias, skip), state, where, tiled=False)


def _head_states(
    inputs: tuple[Tensor, ...],
    of_heads: tuple[Tensor | None, ...],
    state: Tensor,
    where: tuple[Tensor, ...],
    *,
    tiled: bool,
) -> Tensor:
    """inputs: q and k, or c and b, [n, Hk, K], v or x [n, H, V], the others [n, H]."""
    (n_rows, n_key_heads, key_dim), (n_heads, dim) = inputs[0].shape, inputs[2].shape[1:]
    for tensor in inputs:
        require(torch.float32, inputs=tensor)
    require_shape(tuple(inputs[0].shape), k=inputs[1])
    for tensor in inputs[3:]:
        require_shape((n_rows, n_heads), inputs=tensor)
    for tensor in of_heads:
        require(torch.float32, of_heads=tensor)
        require_shape((n_heads,), of_heads=tensor)
    require(torch.float32, state=state)
    require_shape((len(state), n_heads, key_dim, dim), state=state)
    rows = [whole_rows(tensor) for tensor in inputs]
    out = empty(n_rows, n_heads, dim)
    sizes = [tensor.stride(0) for tensor in rows], n_heads, n_key_heads, key_dim, dim
    args = (out, rows, *sizes, [whole(tensor) for tensor in of_heads], *_where(state, *where), tiled)
    launch(native.HeadStates, *args, n_rows=n_rows, n_seqs=len(where[1]))
    return out


def _where(state: Tensor, query_starts: Tensor, context_lens: Tensor, state_ids: Tensor) -> tuple[Any, ...]:
    """ValueError for states that have gaps, which cannot be written in place."""
    if len(state) and not state[0].is_contiguous():
        raise ValueError(f"The states of a sequence lie side by side, not {state.stride()} values apart.")
    require(torch.int32, query_starts=query_starts, context_lens=context_lens, state_ids=state_ids)
    require_shape((len(context_lens) + 1,), query_starts=query_starts)
    require_shape((len(context_lens),), state_ids=state_ids)
    return state, state.stride(0), whole(query_starts), whole(context_lens), state_ids, state_ids.stride(0)


IMPLS = tuple(
    Impl(op, "cpp", fn, unsupported, (OpSpec(dtype=torch.float32),))
    for op, fn in (("causal_conv", causal_conv), ("delta_rule", delta_rule), ("state_scan", state_scan))
)
