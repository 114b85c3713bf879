"""What the configurations of layers with a state have in common."""

from __future__ import annotations

from engine.weights.config import RecurrentConfig
from engine.weights.fields import Fields
from engine.weights.hf.windows import layer_types

_LINEAR = "linear_attention"


def checked(recurrent: RecurrentConfig, fields: Fields, group_name: str) -> RecurrentConfig | None:
    """None where no layer has a state. group_name: the field of its key heads, or groups."""
    if not recurrent.layers:
        return None
    if recurrent.n_heads % recurrent.n_key_heads:
        raise fields.bad(group_name, f"is {recurrent.n_key_heads}, which does not divide {recurrent.n_heads} heads")
    return recurrent


def delta_net(fields: Fields, n_layers: int) -> RecurrentConfig | None:
    """Gated delta-net in the layers of type linear_attention: all but every fourth, unless it is said."""
    period = fields.integer("full_attention_interval", 4)
    usual = [_LINEAR if (i + 1) % period else "full_attention" for i in range(n_layers)]
    types = layer_types(fields, usual, (_LINEAR, "full_attention"))
    recurrent = RecurrentConfig(
        kind="delta",
        layers=tuple(i for i, kind in enumerate(types) if kind == _LINEAR),
        n_heads=fields.integer("linear_num_value_heads", 32),
        head_dim=fields.integer("linear_value_head_dim", 128),
        n_key_heads=fields.integer("linear_num_key_heads", 16),
        key_dim=fields.integer("linear_key_head_dim", 128),
        conv_width=fields.integer("linear_conv_kernel_dim", 4),
    )
    return checked(recurrent, fields, "linear_num_key_heads")


def mamba2(fields: Fields, attention_layers: list[int], n_layers: int, hidden_size: int) -> RecurrentConfig | None:
    """Mamba-2 in all but attention_layers."""
    limit = fields.get("time_step_limit", [0.0, None])  # transformers writes infinity as an object
    most = limit[1] if isinstance(limit, list) and len(limit) == 2 and limit[0] == 0 else 0.0
    if isinstance(most, int | float) and most != float("inf"):
        raise fields.bad("time_step_limit", f"is {limit}, and steps with a limit are not supported")
    n_heads = fields.integer("mamba_n_heads", 128)
    n_inner = fields.integer("mamba_expand", 2) * hidden_size
    head_dim = fields.get("mamba_d_head", "auto")
    head_dim = n_inner // n_heads if head_dim == "auto" else fields.integer("mamba_d_head")
    if head_dim * n_heads != n_inner:
        raise fields.bad("mamba_d_head", f"is {head_dim}: {n_heads} heads of it are not the {n_inner} dims of the layer")
    recurrent = RecurrentConfig(
        kind="mamba2",
        layers=tuple(i for i in range(n_layers) if i not in attention_layers),
        n_heads=n_heads,
        head_dim=head_dim,
        n_key_heads=fields.integer("mamba_n_groups", 1),
        key_dim=fields.integer("mamba_d_state", 256),
        conv_width=fields.integer("mamba_d_conv", 4),
        bias=fields.flag("mamba_proj_bias", False),
        conv_bias=fields.flag("mamba_conv_bias", True),
    )
    return checked(recurrent, fields, "mamba_n_groups")
