"""Rotary embeddings as configurations have them: transformers 5 in `rope_parameters` (one per layer type where these differ),
older ones in `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

import math
from typing import Any

from engine.weights.config import RopeConfig
from engine.weights.fields import Fields

_SCALINGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "none": ((), {}),
    "linear": (("factor",), {}),
    "dynamic": (("factor",), {}),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor"), {}),
    "yarn": (
        ("factor",),
        {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": None, "mscale": None, "mscale_all_dim": None},
    ),
    "longrope": ((), {"attention_factor": None}),
}
"""Rope types: the numbers they need, and the ones they may have."""

_NONE_IF_0 = ("mscale", "mscale_all_dim")
"""Numbers of which 0 says that there is none, as in transformers."""


def rope_section(fields: Fields) -> Fields:
    """Where a model with one rope for all layers describes it."""
    return fields.section("rope_parameters" if fields.get("rope_parameters", None) else "rope_scaling")


def read_rope(
    fields: Fields, parameters: Fields, theta: float, head_dim: int, max_position: int, turned: float = 1.0
) -> RopeConfig:
    """The rope that `parameters` describes. theta and turned, the share of a head that rotates, are defaults of what neither
    they nor `fields`, the model's own, have.
    """
    theta = parameters.number("rope_theta", fields.number("rope_theta", theta))
    scaling = parameters.text("rope_type", parameters.text("type", "default"))
    scaling = "none" if scaling in ("default", "mrope") else scaling  # of mrope's three positions a text has the same
    if scaling not in _SCALINGS:
        supported = ", ".join(name for name in _SCALINGS if name != "none")
        raise parameters.bad("rope_type", f"is {scaling}", f"Supported: default, {supported}.")
    partial = parameters.number("partial_rotary_factor", fields.number("partial_rotary_factor", turned))
    rotary_dim = int(head_dim * partial)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise parameters.bad("partial_rotary_factor", f"is {partial}: {rotary_dim} of {head_dim} dims cannot rotate in pairs")
    needed, optional = _SCALINGS[scaling]
    params: dict[str, Any] = {name: parameters.number(name) for name in needed}
    params |= {name: parameters.number(name, default, positive=name not in _NONE_IF_0) for name, default in optional.items()}
    if scaling in ("llama3", "yarn", "longrope"):
        original = fields.integer("original_max_position_embeddings", max_position)
        params["original_max_position_embeddings"] = parameters.integer("original_max_position_embeddings", original, low=2)
    elif scaling == "dynamic":
        params["original_max_position_embeddings"] = max_position
    if scaling == "longrope":
        params |= {name: _factors(parameters, name, rotary_dim // 2) for name in ("short_factor", "long_factor")}
        factor = parameters.number("factor", max_position / params["original_max_position_embeddings"])
        if params["attention_factor"] is None:
            params["attention_factor"] = longrope_attention(factor, params["original_max_position_embeddings"])
    elif scaling == "yarn":
        params["truncate"] = parameters.flag("truncate", True)
    return RopeConfig(theta, rotary_dim, scaling, params)


def _factors(parameters: Fields, name: str, n: int) -> tuple[float, ...]:
    values = parameters.get(name)
    if not isinstance(values, list) or len(values) != n or not all(_is_positive(value) for value in values):
        raise parameters.bad(name, f"is not a list of {n} positive numbers")
    return tuple(map(float, values))


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def longrope_attention(factor: float, original: int) -> float:
    """The factor of cos and sin where nothing else is said, of a window that is `factor` times the original one."""
    return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0


def rope_pair(
    fields: Fields, theta: float, local_theta: float, head_dim: int, max_position: int
) -> tuple[RopeConfig, RopeConfig]:
    """The ropes of layers that see all and of those with a window, where each kind has its own; scaling that an older file
    describes is of the first kind only. theta is a default, local_theta what a file without layer types means.
    """
    nested = fields.section("rope_parameters")
    full = nested.section("full_attention") if nested.get("full_attention", None) else fields.section("rope_scaling")
    local = nested.section("sliding_attention")
    base = local.number("rope_theta", local_theta)
    positions = head_dim, max_position
    return (
        read_rope(fields, full, theta, *positions),
        read_rope(Fields({**fields.values, "rope_theta": base}, fields.source), local, base, *positions),
    )


def stretched(rope: RopeConfig, max_position: int) -> int:
    """The window with scaling: max_position_embeddings is given before scaling, except by llama3 models."""
    if rope.scaling == "yarn":
        return max(max_position, int(rope.params["original_max_position_embeddings"] * rope.params["factor"]))
    if rope.scaling in ("linear", "dynamic"):
        return int(max_position * rope.params["factor"])
    return max_position
