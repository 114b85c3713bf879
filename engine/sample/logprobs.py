"""Log probabilities under the model's own distribution, before temperature, penalties or any other processing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from engine.types import TokenLogprob
from kernels.ops import Logprobs, OpSpec
from kernels.registry import resolve


def token_logprobs(logits: Tensor, token_ids: Sequence[int], n_top: Sequence[int]) -> list[TokenLogprob]:
    """What the model thought of token_ids[i] at row i.

    logits float32 [rows, vocabulary], left as they are; n_top[i] is how many of the likeliest tokens to list.
    A rank counts the tokens that are strictly likelier.
    """
    if not token_ids:
        return []
    ids = torch.tensor(token_ids, device=logits.device)
    most = min(max(n_top), logits.shape[1])
    values, ranks, top_values, top_ids = (part.tolist() for part in _operator(logits.device.type)(logits, ids, most))
    return [
        TokenLogprob(token_id, value, rank, tuple(zip(row_ids[:n], row_values[:n], strict=True)))
        for token_id, value, rank, row_ids, row_values, n in zip(
            token_ids, values, ranks, top_ids, top_values, n_top, strict=True
        )
    ]


@cache
def _operator(device: str) -> Logprobs:
    return resolve("logprobs", OpSpec(device, torch.float32)).fn
