"""What sampling promises beyond agreement with the oracle: the cuts' definitions, exact sums, nothing that hangs on threads."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels import conformance_sample, cpu
from kernels.cpu.launch import missing, native
from kernels.reference.sample import cut, weigh
from kernels.reference.sample import logprobs as reference_logprobs
from kernels.reference.sample import sample as reference_sample
from kernels.reference.uniform import philox4x32

needs_native = pytest.mark.skipif(missing is not None, reason=str(missing))
NO_FLOOR = -math.inf


def naive_cut(logits: list[float], temperature: float, floor: float, top_k: int, top_p: float) -> set[int]:
    """Ids that stay: min_p, then top_k, then top_p on what is left, likeliest first. Less than half a unit is nothing."""
    weights = {i: math.exp((logit - max(logits)) / temperature) for i, logit in enumerate(logits)}
    kept = [i for i, weight in weights.items() if weight >= max(2**floor, 2**-44)]
    kept.sort(key=lambda i: -weights[i])
    if top_k:
        kept = kept[:top_k]
    total, mass, nucleus = sum(weights[i] for i in kept), 0.0, set()
    for i in kept:
        if top_p < 1 and mass >= top_p * total:
            break
        nucleus.add(i)
        mass += weights[i]
    return nucleus


CUTS = [
    (NO_FLOOR, 1, 1.0),
    (NO_FLOOR, 40, 1.0),
    (NO_FLOOR, 5000, 1.0),
    (NO_FLOOR, 0, 0.9),
    (NO_FLOOR, 0, 0.1),
    (math.log2(0.05), 0, 1.0),
    (0.0, 0, 1.0),
    (NO_FLOOR, 50, 0.8),
    (math.log2(0.02), 0, 0.9),
    (math.log2(0.01), 300, 0.95),
]


def draws(*rows: tuple[float, float, int, float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("spread", [0.5, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("how", CUTS, ids=str)
def test_cuts_keep_what_the_definition_keeps(how, spread) -> None:
    """The flat rows need more candidates for top_p than the reference looks at first."""
    generator = torch.Generator().manual_seed(3)
    for temperature in (0.6, 1.4):
        logits = torch.randn(2, 2000, generator=generator) * spread
        for row, kept in zip(logits.tolist(), cut(logits, draws((temperature, *how)).expand(2, 4)), strict=True):
            assert set(kept.nonzero()[:, 0].tolist()) == naive_cut(row, temperature, *how)


def test_a_cut_row_does_not_depend_on_the_cuts_of_its_neighbours() -> None:
    logits = torch.randn(len(CUTS), 3001, generator=torch.Generator().manual_seed(4))
    hows = draws(*((0.9, *how) for how in CUTS))
    together = cut(logits, hows)
    for i in range(len(CUTS)):
        assert torch.equal(together[i : i + 1], cut(logits[i : i + 1], hows[i : i + 1]))


def test_equals_of_the_last_token_kept_stay() -> None:
    logits = torch.tensor([[1.0, 3.0, 1.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
    weights = cut(logits, draws((1.0, NO_FLOOR, 2, 1.0), (1.0, NO_FLOOR, 0, 0.3)))
    assert (weights > 0).tolist() == [[True, True, True, False], [True, True, True, True]]


def test_top_p_is_a_share_of_what_top_k_left_equals_included() -> None:
    logits = torch.tensor([[0.0, -1.0, -1.0, -1.0, -9.0]])
    assert (cut(logits, draws((1.0, NO_FLOOR, 2, 0.5))) > 0).tolist() == [[True, True, True, True, False]]


def test_weights_are_powers_of_two_within_2_ulp() -> None:
    tempered = -torch.cat((torch.linspace(0, 40, 100_001), torch.logspace(-30, 0, 1001)))
    exact = tempered.double().exp2()
    units = weigh(tempered).double() / 2.0**43
    ulp = torch.ldexp(torch.tensor(1.0, dtype=torch.float64), exact.log2().floor() - 23)
    assert ((units - exact).abs() <= 2 * ulp + 2.0**-44).all()
    assert weigh(torch.tensor([0.0, -45.0, -1e30, -math.inf])).tolist() == [2**43, 0, 0, 0]


@pytest.mark.parametrize(
    "counter, key, words",
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, words) -> None:
    assert philox4x32(counter, key) == words


SAMPLERS = [reference_sample, *(impl.fn for impl in cpu.IMPLS if impl.op == "sample" and missing is None)]


@pytest.mark.parametrize("sample", SAMPLERS, ids=lambda fn: fn.__module__.split(".")[1])
def test_a_number_at_the_border_of_two_tokens_takes_the_second(sample) -> None:
    numbers = [0.0, 0.25, 0.5, 0.75, *(math.nextafter(number, 0.0) for number in (0.25, 0.5, 0.75, 1.0))]
    hows = draws((0.7, NO_FLOOR, 0, 1.0)).repeat(8, 1)
    ids = sample(torch.zeros(8, 4), hows, torch.tensor(numbers, dtype=torch.float64))
    assert ids.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize("sample", SAMPLERS, ids=lambda fn: fn.__module__.split(".")[1])
def test_sums_of_the_largest_vocabularies_neither_overflow_nor_round(sample) -> None:
    n = 2**20 - 1
    logits = torch.zeros(1, n).expand(3, n)
    ids = sample(logits, draws((1.0, NO_FLOOR, 0, 1.0)).repeat(3, 1), torch.tensor([0.5, 0.0, 1 - 2.0**-53]).double())
    assert ids.tolist() == [n // 2, 0, n - 1]


@pytest.fixture
def every_way() -> Iterator[Iterator[str]]:
    """Each instruction set with one thread, and the best one with several, as the native operators' state; names them."""
    level, n_threads = native.level(), native.n_threads()

    def ways() -> Iterator[str]:
        for n in (1, 2, 5):
            native.set_threads(n)
            for name in native.levels() if n == 1 else (level,):
                native.set_level(name)
                yield f"{name}, {n} threads"

    yield ways()
    native.set_level(level)
    native.set_threads(n_threads)


def middles(logits: Tensor, how: Tensor) -> tuple[Tensor, Tensor]:
    """Up to 200 tokens that a draw may give, and a number in the middle of each one's share."""
    weights = cut(logits[None], how[None])[0]
    ids = weights.nonzero()[:, 0]
    ids = ids[:: -(-len(ids) // 200)]
    numbers = (weights.cumsum(-1)[ids] - weights[ids] // 2).double() / weights.sum()
    wide = weights[ids] > weights.sum() >> 45
    return ids[wide], numbers[wide]


@needs_native
@pytest.mark.parametrize("how", [*CUTS, (NO_FLOOR, 0, 1.0), (NO_FLOOR, 0, 0.9999), (NO_FLOOR, 2500, 0.7)], ids=str)
@pytest.mark.parametrize("name", ["peaked", "flat", "rounded", "rising", "two values"])
def test_every_token_that_stays_is_drawn_whatever_the_threads_and_instructions(how, name, every_way) -> None:
    logits = conformance_sample.logits(name, 1, 20_011, torch.Generator().manual_seed(7))
    hows = draws((0.8, *how))
    ids, numbers = middles(logits[0], hows[0])
    assert len(ids)
    for way in every_way:
        together = cpu.sample.sample(logits.expand(len(ids), -1), hows.repeat(len(ids), 1), numbers)
        alone = cpu.sample.sample(logits, hows, numbers[-1:])
        assert torch.equal(together, ids) and alone.item() == ids[-1], way


@needs_native
def test_log_probabilities_are_the_same_whatever_the_threads_and_instructions(every_way) -> None:
    logits = conformance_sample.logits("peaked", 1, 50_000, torch.Generator().manual_seed(8))
    expected = reference_logprobs(logits, torch.tensor([17]), 10)
    for way in every_way:
        for got, want in zip(cpu.sample.logprobs(logits, torch.tensor([17]), 10), expected, strict=True):
            assert torch.equal(got, want), way
