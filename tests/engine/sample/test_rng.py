from __future__ import annotations

from engine.sample.rng import uniforms


def test_numbers_are_uniform_over_positions_choices_and_seeds() -> None:
    n = 4000
    for numbers in (
        uniforms((7, 0, position) for position in range(n)).tolist(),
        uniforms((7, choice, 5) for choice in range(n)).tolist(),
        uniforms((seed, 0, 5) for seed in range(n)).tolist(),
    ):
        assert all(0 <= number < 1 for number in numbers)
        counts = [sum(int(number * 20) == bucket for number in numbers) for bucket in range(20)]
        chi_square = sum((count - n / 20) ** 2 / (n / 20) for count in counts)
        assert chi_square < 43.8, "19 degrees of freedom: one in a thousand exceeds this"


def test_each_part_of_the_key_matters_and_wide_or_negative_seeds_are_welcome() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1 << 32, 0, 0), (-1, 0, 0), (0, 0, 1 << 32)]
    assert len({*uniforms(keys).tolist()}) == len(keys)
    same = uniforms([(-1, 3, 9), ((1 << 64) - 1, 3, 9), (1 << 70, 3, 9), (0, 3, 9)]).tolist()
    assert same[0] == same[1] and same[2] == same[3]
