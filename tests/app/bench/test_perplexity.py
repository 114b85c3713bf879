"""Perplexity: windows as llama-perplexity cuts them, and figures that notice a worse model."""

from __future__ import annotations

import math

import pytest
import torch

from app.bench import perplexity
from engine.errors import ConfigError
from tests.models import smollm2


def test_windows_are_whole_and_begin_with_the_first_token() -> None:
    assert perplexity.windows(list(range(10, 21)), 1, size=4) == [[1, 11, 12, 13], [1, 15, 16, 17]]
    assert perplexity.windows([5, 6, 7, 8], None, size=2) == [[5, 6], [7, 8]]


def test_the_text_that_comes_along_has_several_windows() -> None:
    assert len(perplexity.TEXT.read_text("utf-8").split()) > 3 * perplexity.WINDOW


def test_fast_products_cost_next_to_nothing() -> None:
    text = " ".join(perplexity.TEXT.read_text("utf-8").split()[:900])
    exact = perplexity.measure(smollm2(), text, kernel_precision="exact")
    fast = perplexity.measure(smollm2(), text, kernel_precision="fast")
    assert exact.n_tokens == fast.n_tokens >= perplexity.WINDOW // 2 - 1
    assert exact.log_probabilities != fast.log_probabilities
    assert fast.value == pytest.approx(exact.value, rel=0.02)
    assert 0 < perplexity.spread(exact, fast) < 0.3


def test_the_value_is_that_of_the_probabilities_it_counts() -> None:
    found = perplexity.measure(smollm2(), "one two three four five six seven eight nine ten " * 60, kernel_precision="exact")
    assert found.value == pytest.approx(math.exp(-torch.tensor(found.log_probabilities, dtype=torch.float64).mean().item()))
    assert found.value < 2, "a text that repeats itself is easily foretold"


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="fewer than a window of 512"):
        perplexity.measure(smollm2(), "Too short.")
