"""What a request may do to a distribution before its token is drawn.

Two kinds. Edits change single logits and can move the likeliest token, so greedy rows take them too; they come in
vLLM's order: end tokens masked, bias, repetition penalty, frequency and presence penalties. Cuts only drop the tail of a
tempered distribution: min_p, top_k, top_p, each on what the one before it left; the operator that draws does them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from engine.sample.counts import PenaltyState
from engine.types import SamplingParams, Sequence

GREEDY_BELOW = 1e-5
"""Temperatures below take the likeliest token, which is all that they would draw; the smallest are 0 in float32."""
_HOTTEST = 1e30
"""All that is finite is as likely at this temperature as at any above it."""
Draw = tuple[float, float, float, float]
"""temperature, floor, top_k and top_p, as the operator `sample` takes them."""
GREEDY: Draw = (0.0, 0.0, 0.0, 1.0)


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


def draw(params: SamplingParams) -> Draw:
    """How a request's tokens are drawn: GREEDY itself if the likeliest is taken."""
    if params.temperature < GREEDY_BELOW:
        return GREEDY
    floor = math.log2(params.min_p) if params.min_p > 0 else -math.inf
    return min(params.temperature, _HOTTEST), floor, params.top_k, params.top_p


def _known(ids: Iterable[int], n_vocab: int) -> list[int]:
    """Ids that have a row: a client's stop ids may name ones that the tokenizer does not know."""
    return [token_id for token_id in ids if 0 <= token_id < n_vocab]


def _index(ids: Iterable[int], like: Tensor) -> Tensor:
    return torch.tensor([*ids], dtype=torch.int64, device=like.device)
