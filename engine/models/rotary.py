"""Rotary position embedding: the angles of every position, computed once to the model's window.

Formulas of the scaled variants are those of transformers' modeling_rope_utils, in the same float32 arithmetic.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.weights.config import RopeConfig, mscale


class Rotary:
    """angles: cos and sin, float32 [n_positions, rotary_dim / 2]."""

    def __init__(self, rope: RopeConfig, n_positions: int, device: torch.device) -> None:
        frequencies, factor = inverse_frequencies(rope, n_positions)
        angles = torch.arange(n_positions).float()[:, None] * frequencies
        self.angles = (angles.cos() * factor).to(device), (angles.sin() * factor).to(device)


def inverse_frequencies(rope: RopeConfig, n_positions: int) -> tuple[Tensor, float]:
    """Angle per position of each rotated pair, float32 [rotary_dim / 2], and the factor of cos and sin.

    n_positions matters to "dynamic" and "longrope" only. Raises ModelLoadError for an unknown scaling, or a base that is none.
    """
    if rope.theta <= 1 or (rope.scaling == "dynamic" and rope.rotary_dim <= 2):
        raise ModelLoadError(
            f"The model turns {rope.rotary_dim} dims of a head by positions, with the base {rope.theta:g}, which cannot be.",
            "The configuration is damaged; download the model again.",
        )
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
        case "longrope":
            return _longrope(rope, n_positions), rope.params["attention_factor"]
    raise ModelLoadError(
        f"The model scales its rotary embedding in the way '{rope.scaling}', which is not known here.",
        "Known are none, linear, llama3, yarn, dynamic, longrope and per-pair factors.",
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


def _longrope(rope: RopeConfig, n_positions: int) -> Tensor:
    """Ding et al.: LongRoPE (arXiv:2402.13753), whose factors were searched for a short window and for a long one.

    transformers changes to the long ones in the middle of a text, when it grows beyond the short window. Here the window that is
    served decides, for all texts: cached keys stay valid, and texts that are served in a long window are turned in one way.
    """
    is_long = n_positions > rope.params["original_max_position_embeddings"]
    factors = torch.tensor(rope.params["long_factor" if is_long else "short_factor"], dtype=torch.float32)
    return 1.0 / (factors * rope.theta ** (torch.arange(0, rope.rotary_dim, 2).float() / rope.rotary_dim))


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
    params = rope.params
    if params.get("attention_factor") is not None:
        return params["attention_factor"]
    if params.get("mscale") and params.get("mscale_all_dim"):
        return mscale(params["factor"], params["mscale"]) / mscale(params["factor"], params["mscale_all_dim"])
    return mscale(params["factor"])
