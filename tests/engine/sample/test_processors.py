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


def naive_cut(logits: list[float], p: SamplingParams) -> set[int]:
    """Ids that stay: min_p, then top_k, then top_p on what is left, likeliest first."""
    weights = {i: math.exp((logit - max(logits)) / p.temperature) for i, logit in enumerate(logits)}
    kept = [i for i, weight in weights.items() if weight >= p.min_p]
    kept.sort(key=lambda i: -weights[i])
    if p.top_k:
        kept = kept[: p.top_k]
    total, mass, nucleus = sum(weights[i] for i in kept), 0.0, set()
    for i in kept:
        if p.top_p < 1 and mass >= p.top_p * total:
            break
        nucleus.add(i)
        mass += weights[i]
    return nucleus


CUTS = [
    {"top_k": 1},
    {"top_k": 40},
    {"top_k": 5000},
    {"top_p": 0.9},
    {"top_p": 0.1},
    {"min_p": 0.05},
    {"min_p": 1.0},
    {"top_k": 50, "top_p": 0.8},
    {"top_p": 0.9, "min_p": 0.02},
    {"top_k": 300, "top_p": 0.95, "min_p": 0.01},
]


@pytest.mark.parametrize("spread", [0.5, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_cuts_keep_what_the_definition_keeps(cut, spread) -> None:
    """The flat rows need more candidates for top_p than are looked at first."""
    generator = torch.Generator().manual_seed(3)
    for temperature in (0.6, 1.4):
        params = SamplingParams(temperature=temperature, **cut)
        logits = torch.randn(2, 2000, generator=generator) * spread
        weights = processors.cut(processors.temper(logits, [params] * 2), [params] * 2)
        for row, kept in zip(logits.tolist(), weights, strict=True):
            assert set(kept.nonzero()[:, 0].tolist()) == naive_cut(row, params)


def test_a_cut_row_does_not_depend_on_the_cuts_of_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(4)
    params = [SamplingParams(temperature=0.9, **cut) for cut in CUTS]
    logits = torch.randn(len(params), 3001, generator=generator)
    together = processors.cut(processors.temper(logits, params), params)
    for i, p in enumerate(params):
        assert torch.equal(together[i], processors.cut(processors.temper(logits[i : i + 1], [p]), [p])[0])


def test_equals_of_the_last_token_kept_stay() -> None:
    params = [SamplingParams(top_k=2), SamplingParams(top_p=0.3)]
    logits = torch.tensor([[1.0, 3.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    weights = processors.cut(processors.temper(logits, params), params)
    assert (weights > 0).tolist() == [[True, True, True, False], [True, True, True, True]]


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
