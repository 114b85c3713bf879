"""ModelConfig from Hugging Face's config.json, as transformers 4 and 5 write it.

transformers 5 keeps rope in `rope_parameters` (for gemma3 one per layer type), older ones in `rope_theta` and
`rope_scaling`. Defaults of absent fields are those of the configuration classes of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelLoadError
from engine.weights.config import FAMILIES, ModelConfig, RecurrentConfig, RopeConfig
from engine.weights.fields import Fields

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
_TURNED = {"qwen3_5": 0.25, "bamba": 0.5}
_LINEAR = "linear_attention"
_TEXT_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "max_position_embeddings": 131_072,
    },
    "qwen3_5": {
        "vocab_size": 248_320,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "max_position_embeddings": 32_768,
    },
}
"""Models that also see images: what their text half leaves out is as the configuration classes have it."""
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


def from_hf(config: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """Raises ModelLoadError, naming `source` and the field, for a family or a value that cannot be served."""
    fields = Fields(config, source)
    model_type = fields.text("model_type")
    if model_type in _TEXT_DEFAULTS:
        return from_hf(_text_config(fields, model_type), f"{source}: text_config")
    family = model_type.removesuffix("_text")
    if family not in FAMILIES:
        raise ModelLoadError(f"{source}: models of type {model_type} are not supported.", f"Supported: {', '.join(FAMILIES)}.")
    if fields.get("quantization_config", None):
        raise ModelLoadError(
            f"{source}: this checkpoint is quantised ({fields.section('quantization_config').get('quant_method', 'unknown')}).",
            "Take the model in float16 or bfloat16, or as a GGUF file.",
        )
    gemma = family == "gemma3"
    if gemma and fields.get("use_bidirectional_attention", False):
        raise fields.bad("use_bidirectional_attention", "is true, but only causal models generate text")
    hidden_size, n_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    n_layers = fields.integer("num_hidden_layers", high=4096)
    n_kv_heads = fields.integer("num_key_value_heads", {"gemma3": 4, "mistral": 8, "bamba": 8, "qwen3_5": 4}.get(family, n_heads))
    if n_heads % n_kv_heads:
        raise fields.bad("num_key_value_heads", f"is {n_kv_heads}, which does not divide {n_heads} attention heads")
    head_dim = fields.integer("head_dim", {"gemma3": 256, "qwen3": 128, "qwen3_5": 256}.get(family, hidden_size // n_heads))
    activation = fields.text("hidden_activation" if gemma else "hidden_act", "gelu_pytorch_tanh" if gemma else "silu")
    if activation not in _ACTIVATIONS:
        raise fields.bad("hidden_act", f"is {activation}", f"Supported: {', '.join(_ACTIVATIONS)}.")
    max_position = fields.integer("max_position_embeddings")
    rope, local_rope = _ropes(fields, family, head_dim, max_position)
    biased = fields.flag("attention_bias", False) and family != "mistral"
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        intermediate_size=fields.integer("intermediate_size"),
        rms_eps=fields.number("rms_norm_eps", 1e-5 if family == "bamba" else 1e-6),
        max_position=max_position if gemma else _stretched(rope, max_position),
        tie_embeddings=fields.flag("tie_word_embeddings", gemma),
        attention_bias=family == "qwen2" or biased,
        attention_output_bias=family != "qwen2" and biased,
        mlp_bias=family in ("llama", "bamba") and fields.flag("mlp_bias", False),
        rope=rope,
        local_rope=local_rope,
        windows=_windows(fields, family, n_layers),
        attention_scale=(fields.number("query_pre_attn_scalar", 256.0) if gemma else head_dim) ** -0.5,
        attn_soft_cap=fields.number("attn_logit_softcapping", 0.0) if gemma else 0.0,
        logit_soft_cap=fields.number("final_logit_softcapping", 0.0) if gemma else 0.0,
        embedding_scale=hidden_size**0.5 if gemma else 1.0,
        activation=_ACTIVATIONS[activation],
        recurrent=_recurrent(fields, family, n_layers, hidden_size),
    )


def _text_config(fields: Fields, model_type: str) -> Mapping[str, Any]:
    """The text half of a model that also sees images."""
    text = fields.section("text_config").values
    if not text:
        raise fields.bad("text_config", "is missing")
    if text.get("model_type") == model_type:
        raise fields.bad("text_config", "is a model with images again, instead of the text half of this one")
    defaults = {"model_type": f"{model_type}_text", **_TEXT_DEFAULTS[model_type]}
    return {**defaults, **{name: value for name, value in text.items() if value is not None}}


def _recurrent(fields: Fields, family: str, n_layers: int, hidden_size: int) -> RecurrentConfig | None:
    """Layers with a state, which qwen3_5 and bamba may have."""
    of_family = {"qwen3_5": _delta_net, "bamba": _mamba2}.get(family)
    recurrent = of_family(fields, n_layers, hidden_size) if of_family else None
    if recurrent is None or not recurrent.layers:
        return None
    if recurrent.n_heads % recurrent.n_key_heads:
        name = "linear_num_key_heads" if recurrent.kind == "delta" else "mamba_n_groups"
        raise fields.bad(name, f"is {recurrent.n_key_heads}, which does not divide {recurrent.n_heads} heads")
    return recurrent


def _delta_net(fields: Fields, n_layers: int, hidden_size: int) -> RecurrentConfig:
    period = fields.integer("full_attention_interval", 4)
    types = fields.get("layer_types", [_LINEAR if (i + 1) % period else "full_attention" for i in range(n_layers)])
    if not isinstance(types, list) or len(types) != n_layers or any(kind not in (_LINEAR, "full_attention") for kind in types):
        raise fields.bad("layer_types", f"is not a list of {n_layers} of {_LINEAR}, full_attention")
    return RecurrentConfig(
        kind="delta",
        layers=tuple(i for i, kind in enumerate(types) if kind == _LINEAR),
        n_heads=fields.integer("linear_num_value_heads", 32),
        head_dim=fields.integer("linear_value_head_dim", 128),
        n_key_heads=fields.integer("linear_num_key_heads", 16),
        key_dim=fields.integer("linear_key_head_dim", 128),
        conv_width=fields.integer("linear_conv_kernel_dim", 4),
    )


def _mamba2(fields: Fields, n_layers: int, hidden_size: int) -> RecurrentConfig:
    attention = fields.get("attn_layer_indices", [])
    if not isinstance(attention, list) or not all(isinstance(i, int) and 0 <= i < n_layers for i in attention):
        raise fields.bad("attn_layer_indices", f"is not a list of layers below {n_layers}")
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
    return RecurrentConfig(
        kind="mamba2",
        layers=tuple(i for i in range(n_layers) if i not in attention),
        n_heads=n_heads,
        head_dim=head_dim,
        n_key_heads=fields.integer("mamba_n_groups", 1),
        key_dim=fields.integer("mamba_d_state", 256),
        conv_width=fields.integer("mamba_d_conv", 4),
        bias=fields.flag("mamba_proj_bias", False),
        conv_bias=fields.flag("mamba_conv_bias", True),
    )


def _ropes(fields: Fields, family: str, head_dim: int, max_position: int) -> tuple[RopeConfig, RopeConfig | None]:
    """Of full layers, and of gemma's layers with a window."""
    if family != "gemma3":
        parameters = fields.section("rope_parameters" if fields.get("rope_parameters", None) else "rope_scaling")
        theta = parameters.number("rope_theta", fields.number("rope_theta", 10_000.0))
        turned = _TURNED.get(family, 1.0)
        return _rope(fields, parameters, theta, head_dim, max_position, turned), None
    nested = fields.section("rope_parameters")
    full = nested.section("full_attention") if nested.get("full_attention", None) else fields.section("rope_scaling")
    local = nested.section("sliding_attention")
    theta = full.number("rope_theta", fields.number("rope_theta", 1_000_000.0))
    local_theta = local.number("rope_theta", fields.number("rope_local_base_freq", 10_000.0))
    return _rope(fields, full, theta, head_dim, max_position), _rope(fields, local, local_theta, head_dim, max_position)


def _rope(fields: Fields, parameters: Fields, theta: float, head_dim: int, max_position: int, turned: float = 1.0) -> RopeConfig:
    """turned: the share of a head that rotates, unless the configuration has it."""
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


def _stretched(rope: RopeConfig, max_position: int) -> int:
    """The window with scaling: max_position_embeddings is given before scaling, except by llama3 models."""
    if rope.scaling == "yarn":
        return max(max_position, int(rope.params["original_max_position_embeddings"] * rope.params["factor"]))
    if rope.scaling in ("linear", "dynamic"):
        return int(max_position * rope.params["factor"])
    return max_position


def _windows(fields: Fields, family: str, n_layers: int) -> tuple[int, ...]:
    window = 0
    if family in ("gemma3", "mistral") or (family in ("qwen2", "qwen3") and fields.flag("use_sliding_window", False)):
        # An explicit null says that there is no window; absence means the default of the configuration class.
        absent = fields.values.get("sliding_window", 4096) is None
        window = 0 if absent else fields.integer("sliding_window", 4096)
    if not window:
        return (0,) * n_layers
    if family == "mistral":
        return (window,) * n_layers
    types = fields.get("layer_types", None)
    if types is None and family == "gemma3":
        pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
        return tuple(window if (i + 1) % pattern else 0 for i in range(n_layers))
    if types is None:
        first = fields.integer("max_window_layers", 28, low=0)
        return tuple(window if i >= first else 0 for i in range(n_layers))
    known = {"sliding_attention": window, "full_attention": 0}
    if not isinstance(types, list) or len(types) != n_layers or any(kind not in (*known,) for kind in types):
        raise fields.bad("layer_types", f"is not a list of {n_layers} of {', '.join(known)}")
    return tuple(known[kind] for kind in types)
