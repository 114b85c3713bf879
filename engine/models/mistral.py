"""Mistral 7B and its kin: llama without biases; windows come from the configuration, and in Ministral 3 the queries grow."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.decoder import Decoder
from engine.models.operators import Operators
from engine.models.parts import MLP, Attention, Block, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    factors = _query_factors(config, ops, max_model_len)
    layers = [Block(Attention(config, ops, i, query_factors=factors), MLP(config, ops), norm) for i in range(config.n_layers)]
    return Decoder(config, ops, max_model_len, layers, norm())


def _query_factors(config: ModelConfig, ops: Operators, max_model_len: int) -> Tensor | None:
    """Of each position; None where all are 1."""
    if config.query_growth is None or max_model_len <= config.query_growth[1]:
        return None
    beta, period = config.query_growth
    return (1 + beta * torch.log(1 + torch.floor(torch.arange(max_model_len) / period))).to(ops.device)
