"""Granite 3 and 4 (dense): llama with factors of the embedding, the residual stream, the scores and the logits."""

from __future__ import annotations

from dataclasses import replace

from engine.models import llama
from engine.models.decoder import Decoder
from engine.models.operators import Operators
from engine.weights.config import ModelConfig


def build(config: ModelConfig, ops: Operators, max_model_len: int) -> Decoder:
    """The residual stream is kept divided by the factor of what is added to it, so that no sum needs one: its norms see the same
    when their epsilon is divided by the factor's square.
    """
    factor = config.residual_scale
    divided = replace(config, embedding_scale=config.embedding_scale / factor, rms_eps=config.rms_eps / factor**2)
    return llama.build(divided, ops, max_model_len)
