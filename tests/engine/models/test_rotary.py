"""Angles of every rope variant against transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding

from engine.errors import ModelLoadError
from engine.models.rotary import Rotary
from engine.weights.config import RopeConfig
from engine.weights.hf.config import from_hf

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


SHORT, LONG = [1.0 + i / 100 for i in range(48)], [1.0 + i for i in range(48)]


@pytest.mark.parametrize("n_positions", [4096, 4097])
@pytest.mark.parametrize("given", [{}, {"factor": 8.0}, {"attention_factor": 1.19}], ids=str)
def test_longrope_is_that_of_a_text_which_fills_the_window(n_positions: int, given: dict[str, float]) -> None:
    """As HF's reader has it of a configuration: a text beyond 4096 changes to the long factors in transformers."""
    parameters = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "rope_theta": 1e4, **given}
    described = {"hidden_size": 256, "num_attention_heads": 2, "max_position_embeddings": WINDOW, "vocab_size": 9}
    config = Phi3Config(
        **described,
        original_max_position_embeddings=4096,
        rope_parameters={**parameters, "partial_rotary_factor": 0.75},
        pad_token_id=0,
    )
    cos, sin = Phi3RotaryEmbedding(config)(torch.zeros(1), torch.arange(n_positions)[None])
    rotary = Rotary(from_hf(config.to_dict()).ropes[0], n_positions, torch.device("cpu"))
    for ours, theirs in zip(rotary.angles, (cos, sin), strict=True):
        torch.testing.assert_close(ours, theirs[0, :, :48], rtol=0, atol=1e-6)


def test_of_mropes_three_positions_a_text_has_the_same() -> None:
    parameters = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    config = Qwen2VLTextConfig(hidden_size=256, num_attention_heads=2, num_key_value_heads=2, rope_parameters=parameters)
    cos, sin = Qwen2VLRotaryEmbedding(config)(torch.zeros(1), torch.arange(WINDOW).expand(3, 1, -1))
    for kind in ("default", "mrope"):
        described = {**config.to_dict(), "model_type": "qwen2", "rope_parameters": {**parameters, "rope_type": kind}}
        angles = Rotary(from_hf(described).ropes[0], WINDOW, torch.device("cpu")).angles
        for ours, theirs in zip(angles, (cos, sin), strict=True):
            torch.testing.assert_close(ours, theirs.flatten(0, -3)[0, :, :64], rtol=0, atol=1e-6)


def test_factors_of_each_pair_divide_its_frequency() -> None:
    factors = [1.0, 2.0, 4.0, 8.0]
    rotary = Rotary(RopeConfig(10_000.0, 8, "factors", {"factors": factors}), 50, torch.device("cpu"))
    expected = [49 * 10_000.0 ** (-i / 4) / factor for i, factor in enumerate(factors)]
    torch.testing.assert_close(rotary.angles[0][49], torch.tensor(expected).cos(), rtol=0, atol=1e-5)


def test_an_unknown_scaling_is_an_error_that_names_it() -> None:
    with pytest.raises(ModelLoadError, match="'spiral'"):
        Rotary(RopeConfig(10_000.0, 8, "spiral"), 50, torch.device("cpu"))
