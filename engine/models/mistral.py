"""Mistral 7B and its kin: llama without biases; windows come from the configuration, and in Ministral 3 the queries grow."""

from __future__ import annotations

from engine.models.decoder import Decoder
from engine.models.growth import query_factors
from engine.models.operators import Operators
from engine.models.parts import MLP, Attention, Block, Norm
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    def norm() -> Norm:
        return Norm(ops, config.hidden_size, config.rms_eps)

    factors = query_factors(config, ops, max_model_len)
    layers = [Block(Attention(config, ops, i, query_factors=factors), MLP(config, ops), norm) for i in range(config.n_layers)]
    return Decoder(config, ops, max_model_len, layers, norm())
