"""Angles of every rope variant against transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.errors import ModelLoadError
from engine.models.rotary import Rotary
from engine.weights.config import RopeConfig

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 4096}
WINDOW = 16384


@pytest.mark.parametrize(
    "scaling, params, theta",
    [
        ("none", {}, 10_000.0),
        ("linear", {"factor": 4.0}, 10_000.0),
        ("llama3", LLAMA3, 500_000.0),
        ("yarn", YARN, 1_000_000.0),
        ("yarn", {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}, 10_000.0),
        ("yarn", {**YARN, "attention_factor": 1.25}, 10_000.0),
        ("yarn", {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}, 10_000.0),
        ("yarn", {**YARN, "factor": 1.0}, 10_000.0),
        ("dynamic", {"factor": 2.0, "original_max_position_embeddings": 4096}, 10_000.0),
        ("dynamic", {"factor": 2.0, "original_max_position_embeddings": WINDOW}, 10_000.0),
    ],
    ids=str,
)
def test_angles_equal_those_of_transformers(scaling, params, theta) -> None:
    """dynamic: of a text that fills the window."""
    given = {**params, "rope_type": "default" if scaling == "none" else scaling, "rope_theta": theta}
    max_position = WINDOW
    if scaling == "dynamic":
        max_position = given.pop("original_max_position_embeddings")
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=2, head_dim=128, max_position_embeddings=max_position, rope_parameters=given
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(WINDOW)[None])
    rotary = Rotary(RopeConfig(theta, 128, scaling, params), WINDOW, torch.device("cpu"))
    for ours, theirs in zip(rotary.angles, (cos, sin), strict=True):
        torch.testing.assert_close(ours, theirs[0, :, :64], rtol=0, atol=1e-6)


def test_factors_of_each_pair_divide_its_frequency() -> None:
    factors = [1.0, 2.0, 4.0, 8.0]
    rotary = Rotary(RopeConfig(10_000.0, 8, "factors", {"factors": factors}), 50, torch.device("cpu"))
    expected = [49 * 10_000.0 ** (-i / 4) / factor for i, factor in enumerate(factors)]
    torch.testing.assert_close(rotary.angles[0][49], torch.tensor(expected).cos(), rtol=0, atol=1e-5)


def test_an_unknown_scaling_is_an_error_that_names_it() -> None:
    with pytest.raises(ModelLoadError, match="'spiral'"):
        Rotary(RopeConfig(10_000.0, 8, "spiral"), 50, torch.device("cpu"))
