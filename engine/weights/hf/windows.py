"""Sliding windows of layers, as configurations have them."""

from __future__ import annotations

from engine.weights.fields import Fields


def window_size(fields: Fields, default: int = 4096) -> int:
    """0 for none: an explicit null says that there is no window; absence means the default of the configuration class."""
    absent = fields.values.get("sliding_window", default) is None
    return 0 if absent else fields.integer("sliding_window", default)


def layer_types(fields: Fields, default: list[str], known: tuple[str, ...]) -> list[str]:
    """Of each layer; `default` where the configuration has none, which also says how many layers there are."""
    types = fields.get("layer_types", default)
    if not isinstance(types, list) or len(types) != len(default) or not all(kind in known for kind in types):
        raise fields.bad("layer_types", f"is not a list of {len(default)} of {', '.join(known)}")
    return types


def windows_by_type(fields: Fields, window: int, default: list[bool]) -> tuple[int, ...]:
    """Of each layer: `window` where its type is sliding_attention; default says which layers are, if none has a type."""
    names = [("full_attention", "sliding_attention")[slides] for slides in default]
    types = layer_types(fields, names, ("sliding_attention", "full_attention"))
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)
