"""What the configurations of mixtures of experts have in common."""

from __future__ import annotations

from engine.weights.config import ExpertsConfig
from engine.weights.fields import Fields
from kernels.ops import Routing


def checked(experts: ExpertsConfig, fields: Fields) -> ExpertsConfig | None:
    """None where no layer has experts. Raises ModelLoadError for numbers that do not fit together."""
    if not experts.layers:
        return None
    n, routing = experts.n_experts, experts.routing
    if routing.n_used > n:
        raise fields.bad("num_experts_per_tok", f"is {routing.n_used}, but there are {n} experts")
    if n % routing.n_groups:
        raise fields.bad("n_group", f"is {routing.n_groups}, which does not divide {n} experts")
    if routing.n_used_groups > routing.n_groups or routing.n_used > n // routing.n_groups * routing.n_used_groups:
        raise fields.bad(
            "topk_group", f"is {routing.n_used_groups}: such a part of {routing.n_groups} groups has too few experts"
        )
    return experts


def n_experts(fields: Fields, default: int) -> int:
    """transformers writes the number under either of two names."""
    return fields.integer("num_local_experts", fields.integer("num_experts", default, low=0), low=0)


def sparse_layers(fields: Fields, n_layers: int) -> tuple[int, ...]:
    """Of qwen's families: every so many layers, but for those that are listed."""
    step = fields.integer("decoder_sparse_step", 1)
    dense = fields.get("mlp_only_layers", [])
    if not isinstance(dense, list):
        raise fields.bad("mlp_only_layers", f"is {dense}, expected a list of layers")
    return tuple(i for i in range(n_layers) if i not in dense and (i + 1) % step == 0)


def qwen_experts(
    fields: Fields, n_layers: int, *, n: int, n_used: int, width: int, normalised: bool, shared_width: int = 0
) -> ExpertsConfig | None:
    """Of qwen's families, with their defaults; a shared MLP has a gate."""
    n = n_experts(fields, n)
    shared = fields.integer("shared_expert_intermediate_size", shared_width) if shared_width else 0
    experts = ExpertsConfig(
        n_experts=n,
        width=fields.integer("moe_intermediate_size", width),
        routing=Routing(fields.integer("num_experts_per_tok", n_used), normalised=fields.flag("norm_topk_prob", normalised)),
        layers=sparse_layers(fields, n_layers) if n else (),
        shared_width=shared,
        shared_gate=shared > 0,
    )
    return checked(experts, fields)
