"""Factors of growing queries are those of their formula, and are left out only where all of them are 1."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from engine.models.growth import query_factors
from engine.models.operators import Operators
from engine.weights.config import ModelConfig
from engine.weights.hf.config import from_hf

OPS = Operators(torch.device("cpu"), torch.float32, torch.float32)


def _config(beta: float, period: int, shift: int) -> ModelConfig:
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    plain = from_hf({"model_type": "llama", **sizes, "max_position_embeddings": 64})
    return replace(plain, query_growth=(beta, period), query_shift=shift)


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("n_positions", [1, 7, 8, 9, 30])
def test_factors_by_position(n_positions: int, shift: int) -> None:
    factors = query_factors(_config(0.7, 8, shift), OPS, n_positions)
    wanted = [1 + 0.7 * math.log(1 + (position + shift) // 8) for position in range(n_positions)]
    assert (factors is None) == (max(wanted) == 1)
    if factors is not None:
        torch.testing.assert_close(factors, torch.tensor(wanted))


def test_without_growth_there_are_none() -> None:
    assert query_factors(replace(_config(0.7, 8, 0), query_growth=None), OPS, 30) is None
