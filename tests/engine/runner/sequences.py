"""Sequences for tests that need no scheduler."""

from __future__ import annotations

from typing import Any

from engine.types import Request, SamplingParams, Sequence


def sequence(
    token_ids: list[int],
    *,
    n_output: int = 0,
    seed: int = 0,
    index: int = 0,
    end_ids: frozenset[int] = frozenset(),
    **params: Any,
) -> Sequence:
    """A sequence whose last n_output tokens count as produced."""
    n_prompt = len(token_ids) - n_output
    request = Request("test", token_ids[:n_prompt], SamplingParams(**params))
    return Sequence(request, index, token_ids, n_prompt, seed, max_tokens=1 << 20, end_ids=end_ids, text=None)
