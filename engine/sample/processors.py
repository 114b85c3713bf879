"""What a request may do to a distribution before its token is drawn.

Two kinds. Edits change single logits and can move the likeliest token, so greedy rows take them too; they come in
vLLM's order: end tokens masked, bias, repetition penalty, frequency and presence penalties. Cuts only drop the tail of a
tempered distribution: min_p, top_k, top_p, each on what the one before it left; the operator that draws makes them.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from engine.sample.counts import PenaltyState
from engine.types import SamplingParams, Sequence
from kernels.ops import OpSpec, Penalize
from kernels.registry import resolve

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
    if seq.penalty_state is None:
        seq.penalty_state = PenaltyState(seq, len(logits), logits.device)
    state: PenaltyState = seq.penalty_state
    if seq.n_output < params.min_tokens:
        logits.index_fill_(0, state.ends, -math.inf)
    if params.logit_bias:
        logits.index_add_(0, state.biased, state.biases)
    repeats = params.repetition_penalty != 1.0
    counts = params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
    if repeats or counts:
        seen = state.seen.follow(seq.token_ids) if repeats else state.seen
        output = state.output.follow(seq.token_ids) if counts else state.output
        _penalize(logits.device.type)(
            logits,
            seen.ids,
            params.repetition_penalty,
            output.ids,
            output.counts,
            params.frequency_penalty,
            params.presence_penalty,
        )


@cache
def _penalize(device: str) -> Penalize:
    return resolve("penalize", OpSpec(device, torch.float32)).fn


def draw(params: SamplingParams) -> Draw:
    """How a request's tokens are drawn: GREEDY itself if the likeliest is taken."""
    if params.temperature < GREEDY_BELOW:
        return GREEDY
    floor = math.log2(params.min_p) if params.min_p > 0 else -math.inf
    return min(params.temperature, _HOTTEST), floor, params.top_k, params.top_p
