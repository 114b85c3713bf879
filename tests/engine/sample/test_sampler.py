from __future__ import annotations

import math
import random

import pytest
import torch

from engine.errors import BrokenLogits
from engine.sample.sampler import Sampler
from tests.engine.runner.sequences import sequence

N_VOCAB = 1003


def rows(n: int, seed: int = 0, n_vocab: int = N_VOCAB) -> torch.Tensor:
    return torch.randn(n, n_vocab, generator=torch.Generator().manual_seed(seed)) * 3


def test_temperature_0_takes_the_likeliest_token_after_edits() -> None:
    logits = rows(3)
    best, second = logits.topk(2).indices.unbind(-1)
    best = best.tolist()
    seqs = [
        sequence([1], temperature=0.0),
        sequence([1], temperature=0.0, logit_bias={5: 100.0}),
        sequence([1], temperature=0.0, min_tokens=1, end_ids=frozenset({best[2]})),
    ]
    ids = [token_id for token_id, _ in Sampler(N_VOCAB).sample(logits, seqs)]
    assert ids == [best[0], 5, second[2]]


def test_a_tiny_temperature_is_as_good_as_greedy() -> None:
    logits = rows(4) * 1e30
    seqs = [sequence([1], temperature=1e-30, seed=i) for i in range(4)]
    assert [token_id for token_id, _ in Sampler(N_VOCAB).sample(logits, seqs)] == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-46, 1e-39, 9e-6])
def test_a_temperature_below_float32_or_near_it_draws_the_likeliest_token(temperature) -> None:
    logits = rows(4)
    logits[:, 7] = logits.amax(-1)  # as likely as the likeliest: a draw could give either
    expected = logits.argmax(-1).tolist()
    seqs = [sequence([1], temperature=temperature, seed=i) for i in range(4)]
    assert [token_id for token_id, _ in Sampler(N_VOCAB).sample(logits, seqs)] == expected


def mixed_sequences() -> list:
    params = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.2, "top_k": 20},
        {"temperature": 1.0, "top_k": 700, "top_p": 0.99},
        {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.2},
        {"temperature": 1.5, "frequency_penalty": 0.4, "logit_bias": {3: 2.0}},
        {"temperature": 1.0, "logprobs": 3},
    ]
    return [sequence([1, 2, 3 + i], n_output=1, seed=100 + i, index=i % 2, **p) for i, p in enumerate(params)]


def test_a_row_draws_the_same_alone_and_in_any_company() -> None:
    logits, seqs, sampler = rows(8, seed=1), mixed_sequences(), Sampler(N_VOCAB - 2)
    alone = [sampler.sample(logits[i : i + 1].clone(), [seq])[0] for i, seq in enumerate(seqs)]
    assert sampler.sample(logits.clone(), seqs) == alone
    shuffler = random.Random(0)
    for _ in range(20):
        order = shuffler.sample(range(8), shuffler.randint(1, 8))
        assert sampler.sample(logits[order], [seqs[i] for i in order]) == [alone[i] for i in order]


def test_logits_of_rows_without_edits_are_left_as_they_are() -> None:
    logits = rows(8, seed=1)
    before = logits.clone()
    Sampler(N_VOCAB).sample(logits, mixed_sequences())
    changed = (logits != before).any(dim=-1).nonzero()[:, 0].tolist()
    assert changed == [5, 6], "those with penalties and bias"


def test_draws_depend_on_seed_choice_and_position_only() -> None:
    logits, sampler = torch.zeros(1, N_VOCAB), Sampler(N_VOCAB)

    def draw(n_tokens: int = 3, **key: int) -> int:
        return sampler.sample(logits, [sequence([7] * n_tokens, **key)])[0][0]

    assert draw(seed=1) == draw(seed=1)
    assert len({draw(seed=1), draw(seed=2), draw(seed=1, index=1), draw(4, seed=1)}) == 4


@pytest.mark.parametrize(
    "params, expected",
    [
        ({"temperature": 1.0}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, [0.16 / 0.3, 0.09 / 0.3, 0.04 / 0.3, 0.01 / 0.3]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"top_p": 0.75}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"min_p": 0.4}, [4 / 9, 3 / 9, 2 / 9, 0]),
        ({"logit_bias": {3: math.log(4)}}, [4 / 13, 3 / 13, 2 / 13, 4 / 13]),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(params, expected) -> None:
    n = 6000
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().repeat(n, 1)
    seqs = [sequence([1], seed=42 + i, **params) for i in range(n)]
    ids = [token_id for token_id, _ in Sampler(4).sample(logits, seqs)]
    chi_square = 0.0
    for token_id, share in enumerate(expected):
        count = ids.count(token_id)
        if share == 0:
            assert count == 0
        else:
            chi_square += (count - n * share) ** 2 / (n * share)
    assert chi_square < 16.3, "3 degrees of freedom: one in a thousand exceeds this"


def test_padding_rows_of_the_vocabulary_are_never_drawn_nor_listed() -> None:
    logits = torch.zeros(200, 16)
    logits[:, 10:] = 50.0
    seqs = [sequence([1], seed=i, temperature=i % 2, logprobs=16) for i in range(200)]
    for token_id, logprob in Sampler(10).sample(logits, seqs):
        assert token_id < 10
        assert logprob.logprob == pytest.approx(-math.log(10))
        assert len(logprob.top) == 10


def test_logprobs_are_those_of_the_raw_distribution() -> None:
    logits = rows(1, seed=5)
    raw = torch.log_softmax(logits[0].double(), -1)
    seq = sequence([1], temperature=2.0, logit_bias={17: 100.0}, logprobs=4, seed=3)
    [(token_id, logprob)] = Sampler(N_VOCAB).sample(logits, [seq])
    assert token_id == 17 == logprob.token_id
    assert logprob.logprob == pytest.approx(raw[17].item(), rel=1e-5)
    assert logprob.rank == 1 + int((raw > raw[17]).sum())
    assert [i for i, _ in logprob.top] == raw.topk(4).indices.tolist()
    assert [value for _, value in logprob.top] == pytest.approx(raw.topk(4).values.tolist(), rel=1e-5)


def test_logprobs_of_rows_with_and_without_edits_are_those_of_the_raw_distribution() -> None:
    logits = rows(4, seed=6)
    raw = torch.log_softmax(logits, -1)
    asked = [{"logprobs": 2}, {}, {"logprobs": 2, "logit_bias": {3: 50.0}}, {"repetition_penalty": 1.5, "logprobs": 2}]
    seqs = [sequence([1, 2], n_output=1, temperature=0.0, **params) for params in asked]
    for row, (params, (token_id, logprob)) in enumerate(zip(asked, Sampler(N_VOCAB).sample(logits, seqs), strict=True)):
        if params:
            assert logprob.logprob == pytest.approx(raw[row, token_id].item(), rel=1e-5)
            assert [i for i, _ in logprob.top] == raw[row].topk(2).indices.tolist()
        else:
            assert logprob is None


def test_logprobs_0_gives_the_chosen_token_only() -> None:
    [(_, logprob)] = Sampler(N_VOCAB).sample(rows(1), [sequence([1], temperature=0.0, logprobs=0)])
    assert logprob.rank == 1 and logprob.top == ()


@pytest.mark.parametrize("broken", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_that_is_no_number_is_an_error_that_names_the_request(broken, temperature) -> None:
    logits = rows(2)
    logits[1, 500] = broken
    seqs = [sequence([1], temperature=temperature) for _ in range(2)]
    seqs[1].request.uid = 77
    with pytest.raises(BrokenLogits, match="request 77 "):
        Sampler(N_VOCAB).sample(logits, seqs)


def test_a_draw_from_nothing_is_an_error_and_never_an_id_past_the_vocabulary() -> None:
    seqs = [sequence([1]), sequence([1], min_p=1.5)]
    seqs[1].request.uid = 77
    with pytest.raises(BrokenLogits, match="request 77 "):
        Sampler(N_VOCAB).sample(rows(2), seqs)
