"""DeepSeek-V2 and V3, and what is made like V3: Kimi K2, GLM-4.7-Flash (glm4_moe_lite), Youtu without experts."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ExpertsConfig, KVShape, LatentConfig, ModelConfig, RopeConfig, mscale
from engine.weights.fields import Fields
from engine.weights.hf.experts import checked
from engine.weights.hf.plain import biases, plain
from kernels.ops import Routing


def deepseek_v2(fields: Fields) -> ModelConfig:
    config = replace(_deepseek(fields, interleaved=True), mlp_bias=fields.flag("mlp_bias", False))
    method = fields.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise fields.bad("topk_method", f"is {method}", "Supported: greedy, group_limited_greedy.")
    if fields.flag("norm_topk_prob", False):
        raise fields.bad("norm_topk_prob", "is true, which no DeepSeek-V2 has", "Take the model as it was published.")
    grouped = method == "group_limited_greedy"
    routing = Routing(
        fields.integer("num_experts_per_tok", 6),
        scale=fields.number("routed_scaling_factor", 1.0),
        n_groups=fields.integer("n_group", 1) if grouped else 1,
        n_used_groups=fields.integer("topk_group", 1) if grouped else 1,
        n_best=1,
    )
    return _with_experts(config, fields, routing, n_experts=64, n_shared=2, width=1407, n_dense=0)


def deepseek_v3(fields: Fields) -> ModelConfig:
    config = _deepseek(fields, interleaved=fields.flag("rope_interleave", True))
    routing = _by_sigmoid(fields, n_used=8, scale=2.5, n_groups=8, n_used_groups=4)
    return _with_experts(config, fields, routing, n_experts=256, n_shared=1, width=2048, n_dense=3, choice_bias=True)


def glm4_moe_lite(fields: Fields) -> ModelConfig:
    usual = {"q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "rms_norm_eps": 1e-5}
    fields = Fields({**usual, **fields.values}, fields.source)
    config = _deepseek(fields, interleaved=fields.flag("rope_interleave", True))
    routing = _by_sigmoid(fields, n_used=4, scale=1.8, n_groups=1, n_used_groups=1)
    config = _with_experts(config, fields, routing, n_experts=64, n_shared=1, width=1536, n_dense=1, choice_bias=True)
    types = fields.get("mlp_layer_types", None)
    if types is None or config.experts is None:
        return config
    if not isinstance(types, list) or len(types) != config.n_layers or not set(types) <= {"dense", "sparse"}:
        raise fields.bad("mlp_layer_types", f"is not a list of {config.n_layers} of dense and sparse")
    layers = tuple(i for i, kind in enumerate(types) if kind == "sparse")
    return replace(config, experts=checked(replace(config.experts, layers=layers), fields))


def youtu(fields: Fields) -> ModelConfig:
    fields = Fields({"tie_word_embeddings": True, **fields.values}, fields.source)
    return _deepseek(fields, interleaved=fields.flag("rope_interleave", True))


def _by_sigmoid(fields: Fields, *, n_used: int, scale: float, n_groups: int, n_used_groups: int) -> Routing:
    """The numbers are defaults."""
    return Routing(
        fields.integer("num_experts_per_tok", n_used),
        "sigmoid",
        normalised=fields.flag("norm_topk_prob", True),
        eps=1e-20,
        scale=fields.number("routed_scaling_factor", scale),
        n_groups=fields.integer("n_group", n_groups),
        n_used_groups=fields.integer("topk_group", n_used_groups),
    )


def _with_experts(
    config: ModelConfig,
    fields: Fields,
    routing: Routing,
    *,
    n_experts: int,
    n_shared: int,
    width: int,
    n_dense: int,
    choice_bias: bool = False,
) -> ModelConfig:
    """The numbers are defaults."""
    width = fields.integer("moe_intermediate_size", width)
    experts = ExpertsConfig(
        n_experts=fields.integer("n_routed_experts", fields.integer("num_local_experts", n_experts)),
        width=width,
        routing=routing,
        layers=tuple(range(fields.integer("first_k_dense_replace", n_dense, low=0), config.n_layers)),
        choice_bias=choice_bias,
        shared_width=width * fields.integer("n_shared_experts", n_shared, low=0),
    )
    return replace(config, experts=checked(experts, fields))


def _deepseek(fields: Fields, *, interleaved: bool) -> ModelConfig:
    rope_dim = fields.integer("qk_rope_head_dim", 64)
    latent = LatentConfig(
        rank=fields.integer("kv_lora_rank", 512),
        # Absent is the default's 1536, null none.
        q_rank=0 if fields.values.get("q_lora_rank", 1536) is None else fields.integer("q_lora_rank", 1536),
        key_dim=fields.integer("qk_nope_head_dim", 128),
        rope_dim=rope_dim,
        value_dim=fields.integer("v_head_dim", 128),
        interleaved=interleaved,
    )
    # The heads that these fields speak of are those of a model without latents.
    own = {name: value for name, value in fields.values.items() if name not in ("head_dim", "num_key_value_heads")}
    config = plain(Fields(own, fields.source), "deepseek", head_dim=rope_dim)
    return with_latent(replace(config, **biases(fields)), latent)


def with_latent(config: ModelConfig, latent: LatentConfig) -> ModelConfig:
    """config of whose rope is that of the dims that turn."""
    head_dim, (rope, *_) = latent.key_dim + latent.rope_dim, config.ropes
    return replace(
        config,
        head_dim=head_dim,
        latent=latent,
        kv_shapes=(KVShape(1, latent.rope_dim + latent.rank, latent.rank, latent=True),) * config.n_layers,
        attention_scale=head_dim**-0.5 * _sharpened(rope),
    )


def _sharpened(rope: RopeConfig) -> float:
    """What yarn makes of the scale, beside what it does to cos and sin."""
    of_all = rope.params.get("mscale_all_dim")
    return mscale(rope.params["factor"], of_all) ** 2 if of_all else 1.0
