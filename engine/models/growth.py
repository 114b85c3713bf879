"""Factors of queries that grow with the position, so that attention to a long text stays sharp (arXiv:2501.19399)."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.operators import Operators
from engine.weights.config import ModelConfig


def query_factors(config: ModelConfig, ops: Operators, n_positions: int) -> Tensor | None:
    """Of each position, float32 [n_positions]; None where all are 1."""
    if config.query_growth is None or n_positions + config.query_shift <= config.query_growth[1]:
        return None
    beta, period = config.query_growth
    positions = torch.arange(n_positions) + config.query_shift
    return (1 + beta * torch.log(1 + torch.floor(positions / period))).to(ops.device)
