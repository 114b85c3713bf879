"""What a request may do to a distribution before its token is drawn.

Two kinds. Edits change single logits and can move the likeliest token, so greedy rows take them too; they come in
vLLM's order: end tokens masked, bias, repetition penalty, frequency and presence penalties. Cuts only drop the tail of a
tempered distribution: min_p, top_k, top_p, each on what the one before it left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Items

import torch
from torch import Tensor

from engine.sample.counts import PenaltyState
from engine.types import SamplingParams, Sequence

GREEDY_BELOW = 1e-5
"""Temperatures below take the likeliest token, which is all that they would draw; the smallest are 0 in float32."""
_TOP_P_CANDIDATES = 256
"""Likeliest tokens that are looked at first for top_p, which seldom needs more: sorting all of 150,000 takes 16 ms, this 0.7."""


def edits(seq: Sequence) -> bool:
    """Whether `edit` would change anything in this sequence's next distribution."""
    params = seq.request.params
    return bool(
        params.logit_bias
        or params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
        or seq.n_output < params.min_tokens
    )


def edit(logits: Tensor, seq: Sequence) -> None:
    """Apply a sequence's edits to its row, in place. logits float32 [vocabulary]."""
    params = seq.request.params
    n_vocab = len(logits)
    if seq.n_output < params.min_tokens:
        logits[_index(_known(seq.end_ids, n_vocab), logits)] = -math.inf
    if params.logit_bias:
        biases = torch.tensor([*params.logit_bias.values()], dtype=logits.dtype, device=logits.device)
        logits[_index(params.logit_bias, logits)] += biases
    if seq.penalty_state is None:
        seq.penalty_state = PenaltyState(seq.n_prompt, n_vocab, logits.device)
    if params.repetition_penalty != 1.0:
        ids = seq.penalty_state.seen.follow(seq.token_ids).ids
        seen = logits[ids]
        logits[ids] = torch.where(seen > 0, seen / params.repetition_penalty, seen * params.repetition_penalty)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        output = seq.penalty_state.output.follow(seq.token_ids)
        logits[output.ids] -= (params.frequency_penalty * output.counts + params.presence_penalty).to(logits.dtype)


def temper(logits: Tensor, params: Items[SamplingParams]) -> Tensor:
    """(logits - likeliest logit of the row) / temperature, float32 [rows, vocabulary]; no temperature below GREEDY_BELOW.

    With 0 as the row's largest value, a tiny temperature gives -inf for the rest instead of an overflow.
    """
    temperatures = torch.tensor([p.temperature for p in params], device=logits.device)
    return (logits - logits.amax(dim=-1, keepdim=True)) / temperatures[:, None]


def cut(tempered: Tensor, params: Items[SamplingParams]) -> Tensor:
    """exp(tempered) with the tail set to 0: weights of the draw, not normalised. float32 [rows, vocabulary].

    Whatever the cut, tokens exactly as likely as the last one kept stay too, so that nothing depends on how a sort
    orders equals; the likeliest token always stays.
    """
    floors = torch.tensor([math.log(p.min_p) if p.min_p > 0 else -math.inf for p in params], device=tempered.device)
    rows = [i for i, p in enumerate(params) if 0 < p.top_k < tempered.shape[1] or p.top_p < 1]
    if rows:
        index = torch.tensor(rows, device=tempered.device)
        floors[index] = _sorted_floors(tempered.index_select(0, index), floors[index], [params[i] for i in rows])
    weights = tempered.exp()
    if rows or any(p.min_p > 0 for p in params):
        weights.masked_fill_(tempered < floors[:, None], 0.0)
    return weights


def _sorted_floors(tempered: Tensor, floors: Tensor, params: Items[SamplingParams]) -> Tensor:
    """The least value that top_k and top_p keep in each row, given the least that min_p keeps; float32 [rows]."""
    n_vocab = tempered.shape[1]
    top_k = [p.top_k if 0 < p.top_k < n_vocab else n_vocab for p in params]
    n_wanted = max(_TOP_P_CANDIDATES if k == n_vocab else k for k in top_k)
    values = tempered.topk(min(n_wanted, n_vocab), dim=-1).values
    result = []
    for row, floor, row_values, k, p in zip(tempered, floors, values, top_k, params, strict=True):
        result.append(_row_floor(row, floor, row_values, k, p.top_p))
    return torch.stack(result)


def _row_floor(row: Tensor, floor: Tensor, values: Tensor, top_k: int, top_p: float) -> Tensor:
    """The same for one row, whose likeliest tokens' `values` are given in falling order.

    Sums run one by one, the row's own in vocabulary order, so that they do not depend on how many candidates the batch
    asked for.
    """
    limited = top_k < len(row)
    if limited:
        values = values[:top_k]
        floor = torch.maximum(floor, values[-1])
    if top_p >= 1:
        return floor
    cumulative = _cumulative(values, floor)
    wanted = top_p * (cumulative if limited else _cumulative(row, floor))[-1]
    while not limited and cumulative[-1] < wanted and len(values) < len(row):
        values = row.topk(min(8 * len(values), len(row))).values
        cumulative = _cumulative(values, floor)
    n_below = int((cumulative < wanted).sum())
    return torch.maximum(floor, values[min(n_below, len(values) - 1)])


def _cumulative(values: Tensor, floor: Tensor) -> Tensor:
    """Running sums, float64, of the weights of those values that are not below the floor."""
    return values.exp().masked_fill_(values < floor, 0.0).cumsum(dim=-1, dtype=torch.float64)


def _known(ids: Iterable[int], n_vocab: int) -> list[int]:
    """Ids that have a row: a client's stop ids may name ones that the tokenizer does not know."""
    return [token_id for token_id in ids if 0 <= token_id < n_vocab]


def _index(ids: Iterable[int], like: Tensor) -> Tensor:
    return torch.tensor([*ids], dtype=torch.int64, device=like.device)
