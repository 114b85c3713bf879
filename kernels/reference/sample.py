"""From logits to tokens and log probabilities, without a sort of the whole vocabulary where a few candidates will do."""

from __future__ import annotations

import torch
from torch import Tensor

_LOG2_E = 1.4426950408889634
_UNIT_BITS = 43
_LEAST = -46.0
"""Below 2^-46 a weight is 0 units."""
_CPU_VALUES = 1 << 16
"""Logits of the rows drawn at once on a CPU: with more, their intermediate values leave the cache (seven times slower)."""
_TOP_P_CANDIDATES = 256
"""Likeliest tokens that are looked at first for top_p, which seldom needs more: sorting all of 150,000 takes 16 ms, this 0.7."""


def sample(logits: Tensor, draws: Tensor | None = None, numbers: Tensor | None = None) -> Tensor:
    best, ids = logits.max(dim=-1)
    finite = best.isfinite()
    ids = torch.where(finite, ids, -1)
    if draws is None or numbers is None:
        return ids
    drawn = (finite & (draws[:, 0] != 0)).nonzero()[:, 0]
    for rows in drawn.split(_n_together(logits)) if len(drawn) else ():
        ids[rows] = _draw(logits.index_select(0, rows), draws[rows], numbers[rows])
    return ids


def _n_together(logits: Tensor) -> int:
    return max(1, _CPU_VALUES // logits.shape[1] if logits.device.type == "cpu" else len(logits))


def _draw(logits: Tensor, draws: Tensor, numbers: Tensor) -> Tensor:
    sums = cut(logits, draws).cumsum(dim=-1)
    total = sums[:, -1]
    targets = (numbers * total.double()).long().minimum(total - 1)
    # The first token whose sum exceeds the target: one of weight 0 adds nothing to the sum and is never the first.
    return torch.where(total > 0, torch.searchsorted(sums, targets[:, None], right=True)[:, 0], -1)


def cut(logits: Tensor, draws: Tensor) -> Tensor:
    """Weights of the draw in units of 2^-43, 0 where a cut took a token away; int64 [rows, n]."""
    inverse = (_LOG2_E / draws[:, 0]).float()
    tempered = (logits - logits.amax(dim=-1, keepdim=True)).mul_(inverse[:, None])
    weights = weigh(tempered)
    floors = []
    for row, row_weights, (_, least, top_k, top_p) in zip(tempered, weights, draws.tolist(), strict=True):
        floor = torch.tensor(least, dtype=torch.float32, device=row.device)
        if 1 <= top_k < len(row):
            floor = floor.maximum(row.topk(int(top_k)).values[-1])
        if top_p < 1:
            floor = _nucleus(row, row_weights.masked_fill(row < floor, 0), floor, top_p)
        floors.append(floor)
    return weights.masked_fill_(tempered < torch.stack(floors)[:, None], 0)


def _nucleus(row: Tensor, weights: Tensor, floor: Tensor, top_p: float) -> Tensor:
    """The least value that top_p keeps of those from floor on."""
    wanted = top_p * weights.sum().double()
    n_candidates = _TOP_P_CANDIDATES
    while True:
        values = row.topk(min(n_candidates, len(row))).values
        sums = weigh(values).masked_fill_(values < floor, 0).cumsum(dim=-1).double()
        if sums[-1] >= wanted or len(values) == len(row):
            n_below = int((sums < wanted).sum())
            return floor.maximum(values[min(n_below, len(values) - 1)])
        n_candidates *= 8


def weigh(tempered: Tensor) -> Tensor:
    """2^tempered in units of 2^-43, int64; tempered float32, at most 0.

    A power of 2 times a polynomial, within 2 ulp. Each product and each sum is rounded by itself, never fused, and constants
    are float32: other implementations do the same operations in this order and get the same bits.
    """
    x = tempered.clamp(min=_LEAST)
    k = x.round()
    x = x.sub_(k)
    p = x * 0.00015353342
    for coefficient in (0.0013398901, 0.009618438, 0.055503324, 0.24022648, 0.6931472):
        p = p.add_(coefficient).mul_(x)
    p = p.add_(1.0)
    scaled = (p.view(torch.int32) + (k.int() << 23)).view(torch.float32)
    return scaled.double().mul_(2.0**_UNIT_BITS).round_().long()


def penalize(
    logits: Tensor, seen: Tensor, repetition: float, output: Tensor, counts: Tensor, frequency: float, presence: float
) -> None:
    values = logits[seen]
    logits[seen] = torch.where(values > 0, values / repetition, values * repetition)
    logits[output] -= (frequency * counts + presence).to(logits.dtype)


def logprobs(logits: Tensor, ids: Tensor, n_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n_together = _n_together(logits)
    parts = [_logprobs(*part, n_top) for part in zip(logits.split(n_together), ids.split(n_together), strict=True)]
    values, ranks, top_values, top_ids = map(torch.cat, zip(*parts, strict=True))
    return values, ranks, top_values, top_ids


def _logprobs(logits: Tensor, ids: Tensor, n_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    best = logits.amax(dim=-1, keepdim=True)
    finite = best.isfinite()
    logits = torch.where(finite, logits, torch.nan)
    tempered = (logits - best).mul_(torch.tensor(_LOG2_E).to(logits))
    sums = weigh(tempered.nan_to_num_(neginf=-torch.inf)).sum(dim=-1, keepdim=True)
    scale = best.double() + (sums.double() * 2.0**-_UNIT_BITS).log()
    chosen = logits.gather(1, ids[:, None])
    ranks = (logits > chosen).sum(dim=-1) + 1
    top_values, top_ids = _largest(logits, n_top)
    top_ids = torch.where(finite, top_ids, torch.arange(n_top, device=logits.device))
    return (chosen - scale).float()[:, 0], ranks, (top_values - scale).float(), top_ids


def _largest(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, values and indices; of equals the first, which topk does not promise."""
    values, ids = logits.topk(k, dim=-1)
    if not k:
        return values, ids
    last = values[:, -1:]
    result = ids.clone()
    for row, least, found in zip(logits, last, result, strict=True):
        candidates = (row >= least).nonzero()[:, 0]
        if len(candidates):
            order = row[candidates].sort(descending=True, stable=True).indices
            found.copy_(candidates[order[:k]])
    return logits.gather(1, result), result
