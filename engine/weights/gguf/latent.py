"""DeepSeek-V2 and V3, and models made like them, from a GGUF's metadata (architecture deepseek2)."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import LatentConfig, ModelConfig
from engine.weights.fields import Fields
from engine.weights.gguf.experts import experts, layers_of, settled
from engine.weights.gguf.plain import Described, plain
from engine.weights.hf.deepseek import with_latent

_SHARPENING = 0.1
"""Of mscale, in rope.scaling.yarn_log_multiplier."""


def deepseek2(fields: Fields, file: Described) -> ModelConfig:
    """Newer files have sizes of heads as they are without latents under names that end in _mla, and those of latents in their
    place; and the matrix of keys and values in two, that of keys turned.
    """
    if fields.number("attention.temperature_scale", 0.0, positive=False):
        what = "is there: queries grow with the position, which with latents is not supported"
        raise fields.bad("attention.temperature_scale", what, "Take another model than Mistral Large 3.")
    rank, rope_dim = fields.integer("attention.kv_lora_rank"), fields.integer("rope.dimension_count")
    head_dim = fields.integer("attention.key_length_mla", fields.integer("attention.key_length"))
    value_dim = fields.integer("attention.value_length_mla", fields.integer("attention.value_length"))
    if head_dim <= rope_dim:
        raise fields.bad("attention.key_length", f"is {head_dim}, of which {rope_dim} dims turn and none is left")
    latent = LatentConfig(
        rank=rank,
        q_rank=fields.integer("attention.q_lora_rank", 0, low=0),
        key_dim=head_dim - rope_dim,
        rope_dim=rope_dim,
        value_dim=value_dim,
        in_two="blk.0.attn_k_b.weight" in file.shapes,
    )
    config = plain(_without_heads(settled(fields), rope_dim), file, "deepseek")
    (rope, *_) = config.ropes
    if rope.scaling == "yarn":
        # What llama.cpp makes of cos and sin, it takes back: mscale and mscale_all_dim of these models are the same.
        of_all = fields.number("rope.scaling.yarn_log_multiplier", 0.0, positive=False) / _SHARPENING
        rope = replace(rope, params={**rope.params, "attention_factor": 1.0, "mscale_all_dim": of_all or None})
    scores = "sigmoid" if layers_of(file, config.n_layers, "exp_probs_b.bias") else "softmax"  # V2 chooses without biases
    mixture = experts(fields, file, config.n_layers, scores=scores, normalised=False, eps=1e-20)
    if mixture and mixture.routing.scores == "softmax":
        mixture = replace(mixture, routing=replace(mixture.routing, n_best=1))
    return with_latent(replace(config, ropes=(rope,) * config.n_layers, experts=mixture), latent)


def _without_heads(fields: Fields, rope_dim: int) -> Fields:
    """As plain() shall see them: heads as they turn."""
    sizes = {"attention.key_length": rope_dim, "attention.value_length": rope_dim, "attention.head_count_kv": None}
    return Fields({**fields.values, **{fields.prefix + name: size for name, size in sizes.items()}}, fields.source, fields.prefix)
