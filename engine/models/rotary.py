"""Rotary position embedding: the angles of every position, computed once to the model's window.

Formulas of the scaled variants are those of transformers' modeling_rope_utils, in the same float32 arithmetic.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.weights.config import RopeConfig


class Rotary:
    """angles: cos and sin, float32 [n_positions, rotary_dim / 2]."""

    def __init__(self, rope: RopeConfig, n_positions: int, device: torch.device) -> None:
        frequencies, factor = inverse_frequencies(rope, n_positions)
        angles = torch.arange(n_positions).float()[:, None] * frequencies
        self.angles = (angles.cos() * factor).to(device), (angles.sin() * factor).to(device)


def inverse_frequencies(rope: RopeConfig, n_positions: int) -> tuple[Tensor, float]:
    """Angle per position of each rotated pair, float32 [rotary_dim / 2], and the factor of cos and sin.

    n_positions matters to "dynamic" only. Raises ModelLoadError for an unknown scaling.
    """
    match rope.scaling:
        case "none":
            return _plain(rope.theta, rope.rotary_dim), 1.0
        case "linear":
            return _plain(rope.theta, rope.rotary_dim) / rope.params["factor"], 1.0
        case "factors":
            return _plain(rope.theta, rope.rotary_dim) / torch.tensor(rope.params["factors"], dtype=torch.float32), 1.0
        case "llama3":
            return _llama3(rope), 1.0
        case "dynamic":
            return _dynamic(rope, n_positions), 1.0
        case "yarn":
            return _yarn(rope)
    raise ModelLoadError(
        f"The model scales its rotary embedding in the way '{rope.scaling}', which is not known here.",
        "Known are none, linear, llama3, yarn, dynamic and per-pair factors.",
    )


def _plain(theta: float, dim: int) -> Tensor:
    return 1.0 / theta ** (torch.arange(0, dim, 2).float() / dim)


def _dynamic(rope: RopeConfig, n_positions: int) -> Tensor:
    """NTK-aware scaling for the whole window at once.

    transformers grows the base while a text grows, so that cached keys were turned with another base than new ones.
    Here the window decides: one base for all, that of a text which fills the window.
    """
    factor, original, dim = rope.params["factor"], rope.params["original_max_position_embeddings"], rope.rotary_dim
    length = max(n_positions, original)
    return _plain(rope.theta * (factor * length / original - (factor - 1)) ** (dim / (dim - 2)), dim)


def _llama3(rope: RopeConfig) -> Tensor:
    """Long wavelengths are stretched by the factor, short ones stay, those between are mixed."""
    factor, original = rope.params["factor"], rope.params["original_max_position_embeddings"]
    low, high = rope.params["low_freq_factor"], rope.params["high_freq_factor"]
    frequencies = _plain(rope.theta, rope.rotary_dim)
    wavelengths = 2 * math.pi / frequencies
    smooth = (original / wavelengths - low) / (high - low)
    mixed = (1 - smooth) * frequencies / factor + smooth * frequencies
    scaled = torch.where(wavelengths > original / low, frequencies / factor, mixed)
    return torch.where(wavelengths < original / high, frequencies, scaled)


def _yarn(rope: RopeConfig) -> tuple[Tensor, float]:
    """Peng, Quesnelle, Fan, Shippole: YaRN, efficient context window extension (2023)."""
    params, dim = rope.params, rope.rotary_dim
    factor, original = params["factor"], params["original_max_position_embeddings"]

    def dim_of(n_rotations: float) -> float:
        return dim * math.log(original / (n_rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dim_of(params.get("beta_fast") or 32), dim_of(params.get("beta_slow") or 1)
    if params.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    kept = 1 - ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
    periods = rope.theta ** (torch.arange(0, dim, 2).float() / dim)
    return 1.0 / (factor * periods) * (1 - kept) + 1.0 / periods * kept, _yarn_attention(rope)


def _yarn_attention(rope: RopeConfig) -> float:
    def scale(factor: float, weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    params = rope.params
    if params.get("attention_factor") is not None:
        return params["attention_factor"]
    if params.get("mscale") and params.get("mscale_all_dim"):
        return scale(params["factor"], params["mscale"]) / scale(params["factor"], params["mscale_all_dim"])
    return scale(params["factor"])
