"""LFM2, with MLPs or experts."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ExpertsConfig, ModelConfig, RecurrentConfig
from engine.weights.fields import Fields
from engine.weights.hf.experts import checked, n_experts
from engine.weights.hf.plain import plain
from engine.weights.hf.windows import layer_types
from kernels.ops import Routing


def lfm2(fields: Fields) -> ModelConfig:
    config = _plain(fields, {"intermediate_size": fields.values.get("block_ff_dim")})
    if fields.flag("block_auto_adjust_ff_dim", True):
        config = replace(config, intermediate_size=_adjusted(fields, config.intermediate_size))
    return config


def lfm2_moe(fields: Fields) -> ModelConfig:
    config = _plain(fields, {})
    routing = Routing(
        fields.integer("num_experts_per_tok", 4),
        "sigmoid",
        normalised=fields.flag("norm_topk_prob", True),
        eps=1e-6,
        scale=fields.number("routed_scaling_factor", 1.0),
    )
    experts = ExpertsConfig(
        n_experts=n_experts(fields, 32),
        width=fields.integer("moe_intermediate_size", 1792),
        routing=routing,
        layers=tuple(range(fields.integer("num_dense_layers", 2, low=0), config.n_layers)),
        choice_bias=fields.flag("use_expert_bias", True),
    )
    return replace(config, experts=checked(experts, fields))


def _plain(fields: Fields, older: dict[str, int | None]) -> ModelConfig:
    """older: what fields have under names of the first checkpoints."""
    known = {name: value for name, value in older.items() if value is not None}
    values = {"rms_norm_eps": fields.number("norm_eps", 1e-5), **fields.values, **known}
    if (tied := fields.get("tie_embedding", None)) is not None:
        values["tie_word_embeddings"] = tied
    config = plain(Fields(values, fields.source), "lfm2", n_kv_heads=8, tie=True, theta=1_000_000.0)
    full = fields.get("full_attn_idxs", None)
    if full is not None and not isinstance(full, list):
        raise fields.bad("full_attn_idxs", "is not a list of layers")
    usual = ["full_attention" if full is None or i in full else "conv" for i in range(config.n_layers)]
    types = layer_types(fields, usual, ("conv", "full_attention"))
    layers = tuple(i for i, kind in enumerate(types) if kind == "conv")
    recurrent = RecurrentConfig(
        kind="conv",
        layers=layers,
        n_heads=config.hidden_size,
        head_dim=1,
        n_key_heads=1,
        key_dim=0,
        conv_width=fields.integer("conv_L_cache", 3, low=2),
        bias=fields.flag("conv_bias", False),
        conv_bias=fields.flag("conv_bias", False),
    )
    return replace(config, recurrent=recurrent if layers else None)


def _adjusted(fields: Fields, size: int) -> int:
    """The width of the MLP, of which two thirds are meant, rounded up to whole blocks."""
    multiple = fields.integer("block_multiple_of", 256)
    size = int(2 * size / 3)
    if fields.values.get("block_ffn_dim_multiplier", 1.0) is None:
        return size
    size = int(fields.number("block_ffn_dim_multiplier", 1.0) * size)
    return -(-size // multiple) * multiple
