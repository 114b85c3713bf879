"""GGUF tensor names -> Hugging Face's, and what converters did to the values.

Sources: tensor_mapping.py of the gguf package, convert_hf_to_gguf.py of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from engine.weights.config import ModelConfig

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Norms after attention and MLP, where there are none before them."""
_GLM4 = {
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
}
_LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
_GEMMA4 = {
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps": "experts.gate_up_proj",
    "ffn_down_exps": "experts.down_proj",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
}
_GEMMA4_TOP = {
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
}
_NORM_AFTER = {"post_attention_norm": "post_attention_layernorm"}
"""The norm before the MLP, by another name."""
_DELTA = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
}
_MAMBA = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
    "ssm_a": "mamba.A_log",
    "ssm_d": "mamba.D",
    "ssm_dt.bias": "mamba.dt_bias",
}
_SHARED_ALONE = {f"ffn_{part}": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")}
_SHORT_CONVOLUTION = {f"shortconv.{part}": f"conv.{part}" for part in ("conv", "in_proj", "out_proj")}
_NEXT_TOKENS = {
    f"nextn.{part}": f"nextn.{part}"
    for part in ("eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head_head", "shared_head_norm")
}
"""Of heads that predict several tokens, which lie in layers behind the last one."""
_IN_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,5})\.([\w.]+?)(?:\.(weight|bias))?")
_UNUSED = re.compile(r"rope_(freqs|factors_long|factors_short)\.weight|blk\.\d+\.attn_rot_embd\.weight")
"""Rotary frequencies: read with the configuration, or computed."""


@dataclass(frozen=True, slots=True)
class Source:
    """The GGUF tensor behind a Hugging Face name, and what to undo."""

    gguf_name: str
    n_permuted_heads: int = 0
    """Heads whose rows the converter interleaved; 0 if the rows are as they were."""
    undo: Callable[[Tensor], Tensor] | None = None
    """From a vector's float32 values as the converter left them to what they were."""


@dataclass(frozen=True, slots=True)
class Names:
    """How the tensors of a family are called, and what the converter does to them."""

    layer: Mapping[str, str] = field(default_factory=lambda: _LAYER)
    """GGUF's name within a layer, without weight or bias, -> Hugging Face's; or the whole of both, where they end otherwise."""
    permuted: bool = False
    """Rows of q and k are interleaved."""
    undo: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    """By a pattern of GGUF names."""
    top: Mapping[str, str] = field(default_factory=dict)
    """Whole names outside of layers, besides those of most."""

    def in_layer(self, name: str, kind: str | None) -> str | None:
        """The name within a layer that Hugging Face has for GGUF's; kind: weight or bias, which it ends with, if it does."""
        whole = f"{name}.{kind}" if kind else name
        if whole in self.layer:
            return self.layer[whole]
        return f"{self.layer[name]}.{kind}" if kind and name in self.layer else None


def _minus_one(values: Tensor) -> Tensor:
    return values - 1


def _log_rates(values: Tensor) -> Tensor:
    """Of -exp(A_log)"""
    return (-values).log()


_NORMS_MINUS_ONE = {r"(?!.*ssm_norm).*norm\.weight": _minus_one, r".*ssm_a": _log_rates}


NAMES: dict[str, Names] = {
    "llama": Names(permuted=True),
    "qwen2": Names(),
    "qwen3": Names(),
    "mistral": Names(permuted=True),
    "smollm3": Names(permuted=True),
    "granite": Names(permuted=True),
    "arcee": Names(permuted=True),
    "ernie4_5": Names(),
    "stablelm": Names(),
    "seed_oss": Names(_LAYER | {"post_attention_norm": "post_attention_layernorm"}),
    "gemma": Names(undo={r".*norm\.weight": _minus_one}),
    "phi3": Names(_LAYER | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}),
    "olmo2": Names(_LAYER | _BEHIND),
    "exaone4": Names(_LAYER | _BEHIND),
    "cohere": Names(),
    "cohere2": Names(),
    "glm4": Names(_LAYER | _GLM4),
    "starcoder2": Names(_LAYER | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
    "nemotron": Names(undo={r".*norm\.weight": _minus_one}),
    "mixtral": Names(_LAYER | _EXPERTS, permuted=True),
    "llama4": Names(_LAYER | _EXPERTS),
    "qwen2_moe": Names(_LAYER | _EXPERTS),
    "qwen3_moe": Names(_LAYER | _EXPERTS),
    "ernie4_5_moe": Names(_LAYER | _EXPERTS),
    "gpt_oss": Names(_LAYER | _EXPERTS | _NORM_AFTER | {"attn_sinks.weight": "self_attn.sinks"}),
    "glm4_moe": Names(_LAYER | _EXPERTS | _NORM_AFTER | _NEXT_TOKENS),
    "qwen3_next": Names(_LAYER | _EXPERTS | _NORM_AFTER | _DELTA | _NEXT_TOKENS, undo=_NORMS_MINUS_ONE),
    "qwen3_5": Names(_LAYER | _EXPERTS | _NORM_AFTER | _DELTA | _NEXT_TOKENS, undo=_NORMS_MINUS_ONE),
    "lfm2": Names(_LAYER | _EXPERTS | _SHORT_CONVOLUTION, top={"token_embd_norm.weight": "model.norm.weight"}),
    "granitemoehybrid": Names(_LAYER | _EXPERTS | _MAMBA | _SHARED_ALONE, permuted=True, undo={r".*ssm_a": _log_rates}),
    "gemma2": Names(_LAYER | _POST_NORMS, undo={r".*norm\.weight": _minus_one}),
    "gemma4": Names(_LAYER | _POST_NORMS | _GEMMA4, top=_GEMMA4_TOP),
    "deepseek": Names(_LAYER | _EXPERTS | _LATENT | _NEXT_TOKENS),
    "gemma3": Names(_LAYER | _POST_NORMS, undo={r".*norm\.weight": _minus_one}),
}
"""By family."""


def map_names(gguf_names: list[str], config: ModelConfig) -> tuple[dict[str, Source], list[str]]:
    """Hugging Face name -> source, and the GGUF names that no layer of this family has."""
    sources, unknown = {}, []
    family = NAMES[config.family]
    for gguf_name in gguf_names:
        in_layer = _IN_LAYER.fullmatch(gguf_name)
        if gguf_name in family.top or gguf_name in _TOP:
            name = family.top.get(gguf_name) or _TOP[gguf_name]
        elif in_layer and (within := family.in_layer(in_layer[2], in_layer[3])):
            name = f"model.layers.{in_layer[1]}.{within}"
        else:
            if not _UNUSED.fullmatch(gguf_name):
                unknown.append(gguf_name)
            continue
        n_permuted = {"attn_q": config.n_heads, "attn_k": config.n_kv_heads}.get(in_layer[2], 0) if in_layer else 0
        undo = next((undo for pattern, undo in family.undo.items() if re.fullmatch(pattern, gguf_name)), None)
        sources[name] = Source(gguf_name, n_permuted_heads=n_permuted if family.permuted else 0, undo=undo)
    return sources, unknown


def restore_rows(data: Tensor, n_heads: int) -> Tensor:
    """Undo convert_hf_to_gguf.py's LlamaModel.permute on data [rows, ...] or [rows], of any type, blocks included.

    The converter turned the half-split order of a head's rows (i, i + D / 2) into pairs (2 i, 2 i + 1).
    """
    head_size = data.shape[0] // n_heads
    pairs = data.view(n_heads, head_size // 2, 2, *data.shape[1:])
    return pairs.transpose(1, 2).reshape(data.shape)
