from __future__ import annotations

import pytest

from engine.sample.rng import philox4x32, uniform


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


def test_numbers_are_uniform_over_positions_choices_and_seeds() -> None:
    n = 4000
    for numbers in (
        [uniform(7, 0, position) for position in range(n)],
        [uniform(7, choice, 5) for choice in range(n)],
        [uniform(seed, 0, 5) for seed in range(n)],
    ):
        assert all(0 <= number < 1 for number in numbers)
        counts = [sum(int(number * 20) == bucket for number in numbers) for bucket in range(20)]
        chi_square = sum((count - n / 20) ** 2 / (n / 20) for count in counts)
        assert chi_square < 43.8, "19 degrees of freedom: one in a thousand exceeds this"


def test_each_part_of_the_key_matters_and_wide_or_negative_seeds_are_welcome() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1 << 32, 0, 0), (-1, 0, 0), (0, 0, 1 << 32)]
    assert len({uniform(*key) for key in keys}) == len(keys)
    assert uniform(-1, 3, 9) == uniform((1 << 64) - 1, 3, 9)
