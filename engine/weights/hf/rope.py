"""Rotary embeddings as configurations have them: transformers 5 in `rope_parameters` (one per layer type where these differ),
older ones in `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

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
}
"""Rope types: the numbers they need, and the ones they may have."""


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
    scaling = "none" if scaling == "default" else scaling
    if scaling not in _SCALINGS:
        supported = ", ".join(name for name in _SCALINGS if name != "none")
        raise parameters.bad("rope_type", f"is {scaling}", f"Supported: default, {supported}.")
    partial = parameters.number("partial_rotary_factor", fields.number("partial_rotary_factor", turned))
    rotary_dim = int(head_dim * partial)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_dim:
        raise parameters.bad("partial_rotary_factor", f"is {partial}: {rotary_dim} of {head_dim} dims cannot rotate in pairs")
    needed, optional = _SCALINGS[scaling]
    params: dict[str, Any] = {name: parameters.number(name) for name in needed}
    params |= {name: parameters.number(name, default) for name, default in optional.items()}
    if scaling in ("llama3", "yarn"):
        original = fields.integer("original_max_position_embeddings", max_position)
        params["original_max_position_embeddings"] = parameters.integer("original_max_position_embeddings", original)
    elif scaling == "dynamic":
        params["original_max_position_embeddings"] = max_position
    if scaling == "yarn":
        params["truncate"] = parameters.flag("truncate", True)
    return RopeConfig(theta, rotary_dim, scaling, params)


def stretched(rope: RopeConfig, max_position: int) -> int:
    """The window with scaling: max_position_embeddings is given before scaling, except by llama3 models."""
    if rope.scaling == "yarn":
        return max(max_position, int(rope.params["original_max_position_embeddings"] * rope.params["factor"]))
    if rope.scaling in ("linear", "dynamic"):
        return int(max_position * rope.params["factor"])
    return max_position
