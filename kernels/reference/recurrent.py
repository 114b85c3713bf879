"""Layers with a state, token by token: a causal convolution, the gated delta rule (arXiv:2412.06464), and the state space of
Mamba-2 (arXiv:2405.21060).

A sequence's tokens are taken one after the other by operations of the same shapes, so that chunks and company change no bit:
torch computes exp in another way where the last elements of a tensor do not fill a register.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

_TINY = 1e-6


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
    out, width = torch.empty_like(x), weight.shape[1]
    for rows, block, is_first in _sequences(query_starts, context_lens, state_ids):
        before = torch.zeros_like(state[block]) if is_first else state[block]
        taps = torch.cat([before.T, x[rows].float()])
        total = torch.zeros_like(taps[width - 1 :]) if bias is None else bias.float().expand(len(taps) - width + 1, -1)
        for i in range(width):
            total = total + taps[i : len(taps) - width + 1 + i] * weight[:, i].float()
        for row, of_row in zip(rows, total, strict=True):
            out[row] = (silu(of_row) if activate else of_row).to(x.dtype)
        state[block] = taps[len(taps) - width + 1 :].T
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
    n_each, out = v.shape[1] // q.shape[1], torch.empty_like(v)
    spread = (lambda x: x.repeat(n_each, 1)) if tiled else (lambda x: x.repeat_interleave(n_each, 0))
    rates = -log_rates.float().exp()
    for rows, block, is_first in _sequences(query_starts, context_lens, state_ids):
        now = torch.zeros_like(state[block]) if is_first else state[block]
        for row in rows:
            query, key = (spread(_unit(x[row].float()))[..., None] for x in (q, k))
            now = now * (rates * softplus(a[row].float() + bias.float())).exp()[:, None, None]
            change = (v[row].float() - (now * key).sum(1)) * b[row].float().sigmoid()[:, None]
            now = now + key * change[:, None]
            out[row] = ((now * query).sum(1) * q.shape[-1] ** -0.5).to(v.dtype)
        state[block] = now
    return out


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
    n_each, out = x.shape[1] // b.shape[1], torch.empty_like(x)
    rates = -log_rates.float().exp()
    for rows, block, is_first in _sequences(query_starts, context_lens, state_ids):
        now = torch.zeros_like(state[block]) if is_first else state[block]
        for row in rows:
            into, out_of = (rows_of[row].float().repeat_interleave(n_each, 0)[..., None] for rows_of in (b, c))
            step, value = softplus(steps[row].float() + bias.float()), x[row].float()
            now = now * (step * rates).exp()[:, None, None] + into * (value * step[:, None])[:, None]
            out[row] = ((now * out_of).sum(1) + value * skip.float()[:, None]).to(x.dtype)
        state[block] = now
    return out


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + _TINY).rsqrt()


def _sequences(query_starts: Tensor, context_lens: Tensor, state_ids: Tensor) -> Iterator[tuple[range, int, bool]]:
    """(rows, block of the state, whether they begin the text) of each sequence that has rows."""
    starts = query_starts.tolist()
    for i, (context, block) in enumerate(zip(context_lens.tolist(), state_ids.tolist(), strict=True)):
        rows = range(starts[i], starts[i + 1])
        if rows:
            yield rows, block, context == len(rows)
