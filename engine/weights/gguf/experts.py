"""Models with experts, and hybrids, from a GGUF's metadata; which layers have what is told by their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from engine.errors import ModelLoadError
from engine.weights.config import ExpertsConfig, ModelConfig, RecurrentConfig
from engine.weights.fields import Fields
from engine.weights.gguf.plain import Described, is_array, pattern_windows, plain
from engine.weights.hf.experts import checked
from kernels.ops import Routing

_SCORES = {1: "softmax", 2: "sigmoid"}
"""As ExpertGatingFuncType of the gguf package."""


def settled(fields: Fields) -> Fields:
    """Without what plain() cannot read: layers of heads that predict several tokens, layers without heads, no MLP."""
    values, prefix = dict(fields.values), fields.prefix
    n_layers = fields.integer("block_count", high=4096) - fields.integer("nextn_predict_layers", 0, low=0)
    values[f"{prefix}block_count"] = n_layers
    for name in ("attention.head_count_kv", "feed_forward_length"):
        if is_array(counts := fields.get(name, None)) and len(counts):
            values[f"{prefix}{name}"] = max(counts)
    values.setdefault(f"{prefix}feed_forward_length", fields.get("expert_feed_forward_length", 1))
    return Fields(values, fields.source, prefix)


def experts(
    fields: Fields, file: Described, n_layers: int, *, scores: str = "softmax", normalised: bool, eps: float = 0.0
) -> ExpertsConfig | None:
    """scores and normalised: where the file does not say."""

    def layers_with(name: str) -> tuple[int, ...]:
        return layers_of(file, n_layers, name)

    def has(name: str) -> bool:
        return bool(layers_with(name))

    layers = layers_with("ffn_gate_inp.weight")
    if not layers:
        return None
    gating = fields.integer("expert_gating_func", 0, low=0)
    if gating not in (0, *_SCORES):
        raise fields.bad("expert_gating_func", f"is {gating}", "Supported: 1 (softmax) and 2 (sigmoid).")
    shared = next((file.shapes[f"blk.{i}.ffn_gate_shexp.weight"][0] for i in layers_with("ffn_gate_shexp.weight")), 0)
    return checked(
        ExpertsConfig(
            n_experts=fields.integer("expert_count"),
            width=fields.integer("expert_feed_forward_length", fields.integer("feed_forward_length")),
            routing=Routing(
                fields.integer("expert_used_count"),
                _SCORES.get(gating, scores),
                normalised=fields.flag("expert_weights_norm", normalised),
                eps=eps,
                scale=fields.number("expert_weights_scale", 0.0, positive=False) or 1.0,
                n_groups=fields.integer("expert_group_count", 1),
                n_used_groups=fields.integer("expert_group_used_count", 1),
            ),
            layers=layers,
            choice_bias=has("exp_probs_b.bias"),
            bias=has("ffn_gate_exps.bias"),
            shared_width=shared,
            shared_gate=has("ffn_gate_inp_shexp.weight"),
        ),
        fields,
    )


def layers_of(file: Described, n_layers: int, name: str) -> tuple[int, ...]:
    """That have this tensor."""
    return tuple(i for i in range(n_layers) if f"blk.{i}.{name}" in file.shapes)


def mixtral(fields: Fields, file: Described) -> ModelConfig:
    config = plain(settled(fields), file, "mixtral")
    return replace(config, experts=experts(settled(fields), file, config.n_layers, normalised=True))


def qwen2moe(fields: Fields, file: Described) -> ModelConfig:
    config = plain(settled(fields), file, "qwen2_moe")
    return replace(config, experts=experts(settled(fields), file, config.n_layers, normalised=False))


def qwen3moe(fields: Fields, file: Described) -> ModelConfig:
    config = plain(settled(fields), file, "qwen3_moe")
    return replace(config, head_norms=True, experts=experts(settled(fields), file, config.n_layers, normalised=True))


def gpt_oss(fields: Fields, file: Described) -> ModelConfig:
    """What files do not say, borders of yarn that are not rounded and limits of the activation, is as in all gpt-oss."""
    config = plain(settled(fields), file, "gpt_oss", theta=150_000.0)
    rope = config.ropes[0]
    if rope.scaling == "yarn":
        rope = replace(rope, params={**rope.params, "truncate": False})
    routed = experts(settled(fields), file, config.n_layers, normalised=False)
    if routed is None:
        what = "the tensor blk.0.ffn_gate_inp.weight, which chooses experts, is missing"
        raise ModelLoadError(f"{fields.source}: {what}.", "Download the model again.")
    routed = replace(routed, routing=replace(routed.routing, scores="chosen"), activation="clipped", alpha=1.702, limit=7.0)
    return replace(
        config,
        ropes=(rope,) * config.n_layers,
        windows=pattern_windows(fields, config.n_layers, 2),
        attention_sinks=True,
        experts=routed,
    )


def glm4moe(fields: Fields, file: Described) -> ModelConfig:
    config = plain(settled(fields), file, "glm4_moe")
    routed = experts(settled(fields), file, config.n_layers, scores="sigmoid", normalised=True, eps=1e-20)
    return replace(config, head_norms="blk.0.attn_q_norm.weight" in file.shapes, experts=routed)


def ernie4_5_moe(fields: Fields, file: Described) -> ModelConfig:
    config = plain(settled(fields), file, "ernie4_5_moe")
    return replace(config, experts=experts(settled(fields), file, config.n_layers, normalised=True))


def _delta(family: str, *, tiled: bool) -> Callable[[Fields, Described], ModelConfig]:
    """tiled: converters put value heads into the order that repeating key heads as a whole wants."""

    def read(fields: Fields, file: Described) -> ModelConfig:
        fields = settled(fields)
        config = plain(fields, file, family, theta=10_000_000.0)
        n_heads, n_inner = fields.integer("ssm.time_step_rank"), fields.integer("ssm.inner_size")
        n_key_heads = fields.integer("ssm.group_count")
        if n_inner % n_heads or n_heads % n_key_heads:
            raise fields.bad("ssm.time_step_rank", f"is {n_heads}, which does not fit {n_inner} dims and {n_key_heads} key heads")
        recurrent = RecurrentConfig(
            kind="delta",
            layers=layers_of(file, config.n_layers, "ssm_out.weight"),
            n_heads=n_heads,
            head_dim=n_inner // n_heads,
            n_key_heads=n_key_heads,
            key_dim=fields.integer("ssm.state_size"),
            conv_width=fields.integer("ssm.conv_kernel"),
            tiled=tiled,
        )
        routed = experts(fields, file, config.n_layers, normalised=True)
        return replace(config, recurrent=recurrent if recurrent.layers else None, experts=routed)

    return read


qwen3next = _delta("qwen3_next", tiled=False)
qwen35 = _delta("qwen3_5", tiled=True)


def lfm2(fields: Fields, file: Described) -> ModelConfig:
    fields = settled(fields)
    config = plain(fields, file, "lfm2", theta=1_000_000.0)
    layers = layers_of(file, config.n_layers, "shortconv.conv.weight")
    recurrent = RecurrentConfig(
        kind="conv",
        layers=layers,
        n_heads=config.hidden_size,
        head_dim=1,
        n_key_heads=1,
        key_dim=0,
        conv_width=fields.integer("shortconv.l_cache", low=2),
        bias=bool(layers) and f"blk.{layers[0]}.shortconv.in_proj.bias" in file.shapes,
        conv_bias=bool(layers) and f"blk.{layers[0]}.shortconv.conv.bias" in file.shapes,
    )
    routed = experts(fields, file, config.n_layers, scores="sigmoid", normalised=True, eps=1e-6)
    return replace(config, recurrent=recurrent if layers else None, experts=routed)


def granitehybrid(fields: Fields, file: Described) -> ModelConfig:
    """Attention is turned unless the file says that it is not, as converters do for models with Mamba other than Bamba."""
    fields = settled(fields)
    config = plain(fields, file, "granitemoehybrid")
    turned = fields.flag("rope.scaling.finetuned", True)
    layers = layers_of(file, config.n_layers, "ssm_out.weight")
    n_heads, n_inner, n_groups = (fields.integer(f"ssm.{name}") for name in ("time_step_rank", "inner_size", "group_count"))
    if n_inner % n_heads or n_heads % n_groups:
        raise fields.bad("ssm.time_step_rank", f"is {n_heads}, which does not fit {n_inner} dims and {n_groups} groups")
    recurrent = RecurrentConfig(
        kind="mamba2",
        layers=layers,
        n_heads=n_heads,
        head_dim=n_inner // n_heads,
        n_key_heads=n_groups,
        key_dim=fields.integer("ssm.state_size"),
        conv_width=fields.integer("ssm.conv_kernel"),
        bias=bool(layers) and f"blk.{layers[0]}.ssm_in.bias" in file.shapes,
        conv_bias=bool(layers) and f"blk.{layers[0]}.ssm_conv1d.bias" in file.shapes,
    )
    routed = experts(fields, file, config.n_layers, normalised=False)
    if routed is not None:
        routed = replace(routed, routing=replace(routed.routing, scores="chosen"))
    shared = routed.shared_width if routed else file.shapes.get("blk.0.ffn_gate.weight", (config.intermediate_size,))[0]
    attention = [i for i in range(config.n_layers) if i not in layers]
    return replace(
        config,
        intermediate_size=shared,
        ropes=config.ropes if turned else (None,) * config.n_layers,
        attention_bias=any(f"blk.{i}.attn_q.bias" in file.shapes for i in attention),
        attention_output_bias=any(f"blk.{i}.attn_output.bias" in file.shapes for i in attention),
        attention_scale=fields.number("attention.scale", config.attention_scale),
        embedding_scale=fields.number("embedding_scale", 1.0),
        residual_scale=fields.number("residual_scale", 1.0),
        logit_scale=1.0 / fields.number("logit_scale", 1.0),
        recurrent=recurrent if layers else None,
        experts=routed,
        shared_width=shared,
    )
