"""Each processor against the formula written out token by token."""

from __future__ import annotations

import math

import pytest
import torch

from engine.sample import processors
from engine.types import SamplingParams
from tests.engine.runner.sequences import sequence


def edited(logits: list[float], seq) -> list[float]:
    row = torch.tensor(logits)
    processors.edit(row, seq)
    return row.tolist()


def test_a_plain_request_edits_nothing() -> None:
    assert not processors.edits(sequence([1, 2, 3], n_output=1, temperature=0.7, top_p=0.5, top_k=3, min_p=0.1))


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 0.5},
        {"presence_penalty": -0.7},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": -0.7, "logit_bias": {1: 5.0, 4: -100.0}},
    ],
)
def test_penalties_follow_their_formulas(params) -> None:
    logits = [2.0, -1.0, 0.5, 3.0, -2.0, 0.0]
    prompt, output = [0, 1, 1], [1, 3, 3]
    seq = sequence(prompt + output, n_output=3, **params)
    expected = []
    for token_id, logit in enumerate(logits):
        logit += params.get("logit_bias", {}).get(token_id, 0.0)
        if token_id in prompt + output:
            penalty = params.get("repetition_penalty", 1.0)
            logit = logit / penalty if logit > 0 else logit * penalty
        count = output.count(token_id)
        logit -= params.get("frequency_penalty", 0.0) * count + params.get("presence_penalty", 0.0) * (count > 0)
        expected.append(logit)
    assert processors.edits(seq)
    assert edited(logits, seq) == pytest.approx(expected, rel=1e-6)


def test_prompt_tokens_count_for_repetition_only() -> None:
    seq = sequence([0, 1], presence_penalty=1.0, frequency_penalty=1.0)
    assert edited([1.0, 1.0, 1.0], seq) == [1.0, 1.0, 1.0]


def test_end_tokens_are_masked_until_min_tokens_were_produced() -> None:
    ends = frozenset({1, 999})
    early = sequence([0, 0], n_output=1, min_tokens=2, end_ids=ends)
    assert edited([0.0, 9.0, 0.0], early) == [0.0, -math.inf, 0.0]
    assert not processors.edits(sequence([0, 0, 0], n_output=2, min_tokens=2, end_ids=ends))


def test_a_prompt_with_an_id_past_the_vocabulary_is_no_index_error() -> None:
    assert edited([2.0, 2.0], sequence([0, 5], repetition_penalty=2.0)) == [1.0, 2.0]


@pytest.mark.parametrize(
    "params, expected",
    [
        ({"temperature": 0.0, "top_k": 3}, processors.GREEDY),
        ({"temperature": 9e-6, "top_p": 0.5}, processors.GREEDY),
        ({"temperature": 0.7}, (0.7, -math.inf, 0, 1.0)),
        ({"temperature": 1.0, "min_p": 0.25, "top_k": 40, "top_p": 0.9}, (1.0, -2.0, 40, 0.9)),
        ({"temperature": math.inf}, (1e30, -math.inf, 0, 1.0)),
    ],
)
def test_a_requests_parameters_become_those_of_the_draw(params, expected) -> None:
    assert processors.draw(SamplingParams(**params)) == expected


class Counted(list):
    """A list that knows how many of its items were looked at."""

    n_read = 0

    def __getitem__(self, at):
        found = super().__getitem__(at)
        self.n_read += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self):
        self.n_read += len(self)
        return super().__iter__()


PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": -0.7}


def test_penalties_look_at_new_tokens_only() -> None:
    tokens = Counted([1, 2, 3] * 20_000)
    seq = sequence(tokens, n_output=30_000, **PENALTIES)
    edited([1.0] * 8, seq)
    for token_id in (5, 2):
        tokens.append(token_id)
        tokens.n_read = 0
        edited([1.0] * 8, seq)
        assert tokens.n_read <= 2, "one for all tokens, one for those produced"


def test_penalties_kept_up_are_those_counted_anew() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(50, generator=generator).tolist()
    seq = sequence([3, 3, 7], **PENALTIES)
    for token_id in torch.randint(0, 60, (200,), generator=generator).tolist():
        seq.token_ids.append(token_id)
        assert edited(logits, seq) == edited(logits, sequence([*seq.token_ids], n_output=seq.n_output, **PENALTIES))
    for length in (120, 3, 2):
        del seq.token_ids[length:]
        assert edited(logits, seq) == edited(logits, sequence([*seq.token_ids], n_output=max(0, length - 3), **PENALTIES))
    seq.token_ids += [9, 4]
    assert edited(logits, seq) == edited(logits, sequence([3, 3, 9, 4], n_output=1, **PENALTIES))
