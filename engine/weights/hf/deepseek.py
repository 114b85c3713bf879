"""DeepSeek-V2 and V3."""

from __future__ import annotations

from dataclasses import replace

from engine.models.rotary import mscale
from engine.weights.config import KVShape, LatentConfig, ModelConfig, RopeConfig
from engine.weights.fields import Fields
from engine.weights.hf.plain import biases, plain


def deepseek_v2(fields: Fields) -> ModelConfig:
    return replace(_deepseek(fields, interleaved=True), mlp_bias=fields.flag("mlp_bias", False))


def deepseek_v3(fields: Fields) -> ModelConfig:
    return _deepseek(fields, interleaved=fields.flag("rope_interleave", True))


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
