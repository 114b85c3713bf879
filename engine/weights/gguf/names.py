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
_IN_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(\w+)\.(weight|bias)")
_UNUSED = re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd\.weight")
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
    """GGUF's name within a layer, without weight or bias, -> Hugging Face's."""
    permuted: bool = False
    """Rows of q and k are interleaved."""
    undo: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    """By a pattern of GGUF names."""


def _minus_one(values: Tensor) -> Tensor:
    return values - 1


NAMES: dict[str, Names] = {
    "llama": Names(permuted=True),
    "qwen2": Names(),
    "qwen3": Names(),
    "gemma3": Names(_LAYER | _POST_NORMS, undo={r".*norm\.weight": _minus_one}),
}
"""By family."""


def map_names(gguf_names: list[str], config: ModelConfig) -> tuple[dict[str, Source], list[str]]:
    """Hugging Face name -> source, and the GGUF names that no layer of this family has."""
    sources, unknown = {}, []
    family = NAMES[config.family]
    for gguf_name in gguf_names:
        in_layer = _IN_LAYER.fullmatch(gguf_name)
        if gguf_name in _TOP:
            name = _TOP[gguf_name]
        elif in_layer and in_layer[2] in family.layer:
            name = f"model.layers.{in_layer[1]}.{family.layer[in_layer[2]]}.{in_layer[3]}"
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
