"""GGUF files of tiny models with experts and of hybrids, as the classes of llama.cpp's convert_hf_to_gguf.py make them.

Of the classes: LlamaModel (mixtral), Qwen2MoeModel, Qwen3MoeModel, Qwen3NextModel, Qwen3_5MoeTextModel with
_LinearAttentionVReorderBase, GptOssModel, Glm4MoeModel, LFM2Model, LFM2MoeModel, GraniteHybridModel with Mamba2Model,
Llama4Model.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import gguf
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engine.models.converted import _describe, _llama3_factors

ARCHITECTURES = {
    **{"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next"},
    **{"qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "gpt_oss": "gpt-oss", "glm4_moe": "glm4moe"},
    **{"ernie4_5_moe": "ernie4_5-moe", "llama4_text": "llama4"},
    **{"lfm2": "lfm2", "lfm2_moe": "lfm2moe", "granitemoehybrid": "granitehybrid"},
}
"""By model_type."""

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_LFM2 = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
Named = tuple[str, Tensor]


def to_gguf(
    folder: Path,
    config: Any,
    path: Path,
    *,
    quantised: Mapping[str, str] = MappingProxyType({}),
    fused: bool = False,
    silent: Collection[str] = (),
) -> None:
    """folder: as tiny.saved has written it, config: of the model. quantised: names within a layer -> their types.
    fused: gate and up of all experts are one tensor. silent: keys that the file does not have.
    """
    config = SimpleNamespace(**config.to_dict())
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    tensors = load_file(folder / "model.safetensors")
    of_mlp = tensors.get("model.layers.0.feed_forward.w1.weight")
    _describe_all(writer, config, 0 if of_mlp is None else len(of_mlp))
    known = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    for name, values in _converted(_fused(_merged(tensors)) if fused else _merged(tensors), config):
        gguf_name = names.get_name(name, (".weight", ".bias")) or name
        assert gguf_name != name or name.startswith(("blk.", "token_embd", "output", "rope_freqs")), name
        data, kind = values.float().contiguous().numpy(), quantised.get(gguf_name.split(".")[2] if ".layers." in name else "")
        of_type = gguf.GGMLQuantizationType[kind or "F32"]
        writer.add_tensor(gguf_name, gguf.quantize(data, of_type) if kind else data, raw_dtype=of_type)
    for key in silent:
        del writer.kv_data[0][f"{architecture}.{key}"]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe_all(writer: gguf.GGUFWriter, config: Any, width: int) -> None:
    """width: of the first layer's MLP, which LFM2's configuration does not say."""
    kind = config.model_type
    if not hasattr(config, "intermediate_size"):
        config.intermediate_size = config.moe_intermediate_size
    heads = config.num_key_value_heads
    if kind.startswith("lfm2"):
        config.rms_norm_eps = config.norm_eps
        config.intermediate_size = width
        config.num_key_value_heads = [heads if of_layer == "full_attention" else 0 for of_layer in config.layer_types]
    if kind == "llama4_text":
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
        config.intermediate_size = config.intermediate_size_mlp
    if kind == "granitemoehybrid":
        config.num_key_value_heads = [heads if "full" in of_layer else 0 for of_layer in config.layer_types]
    _describe(writer, config)
    config.num_key_value_heads = heads
    n = getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0) or getattr(config, "n_routed_experts", 0)
    n = n or getattr(config, "moe_num_experts", 0)
    if n:
        writer.add_expert_count(n)
        writer.add_expert_used_count(getattr(config, "moe_k", 0) or config.num_experts_per_tok)
    if hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
    if kind == "gpt_oss":
        writer.add_sliding_window(config.sliding_window)
        writer.add_expert_feed_forward_length(config.intermediate_size)
    if kind == "glm4_moe":
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if kind.startswith("lfm2"):
        writer.add_shortconv_l_cache(config.conv_L_cache)
    if kind == "lfm2_moe":
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if kind == "granitemoehybrid":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
        writer.add_ssm_conv_kernel(config.mamba_d_conv)
        writer.add_ssm_state_size(config.mamba_d_state)
        writer.add_ssm_group_count(config.mamba_n_groups)
        writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
        writer.add_ssm_time_step_rank(config.mamba_n_heads)


def _merged(tensors: dict[str, Tensor]) -> Iterator[Named]:
    """Experts one by one as one tensor of all."""
    experts: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for name, values in tensors.items():
        if found := _EXPERT.fullmatch(name):
            experts[f"{found[1]}.{_LFM2.get(found[3], found[3])}.weight"][int(found[2])] = values
        else:
            yield name, values
    for name, of_all in experts.items():
        yield (
            name.replace("block_sparse_moe", "mlp").replace("feed_forward", "mlp"),
            torch.stack([of_all[i] for i in range(len(of_all))]),
        )


def _fused(tensors: Iterator[Named]) -> Iterator[Named]:
    gates = {}
    for name, values in tensors:
        if name.endswith("experts.gate_proj.weight"):
            gates[name] = values
        elif gate := name.endswith("experts.up_proj.weight") and name.replace("up_proj", "gate_proj"):
            yield gate.replace("gate_proj", "gate_up_proj"), torch.cat((gates[gate], values), 1)
        else:
            yield name, values


def _converted(tensors: Iterator[Named], config: Any) -> Iterator[Named]:
    convert = _CONVERT.get(config.model_type, lambda name, values, config: [(name, values)])
    for name, values in tensors:
        yield from convert(name, values, config)


def _permuted(name: str, values: Tensor, config: Any) -> Iterator[Named]:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads:
        values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    yield name, values


def _qwen3_next(name: str, values: Tensor, config: Any) -> Iterator[Named]:
    layer = name.split(".")[2] if ".layers." in name else ""
    if name.endswith(".A_log"):
        values = -values.exp()
    elif name.endswith(".dt_bias"):
        name = name.removesuffix(".dt_bias") + ".dt_proj.bias"
    elif "conv1d" in name:
        values = values.squeeze()
    elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        values = values + 1
    if "in_proj_qkvz" not in name:
        yield name, values
        return
    each = config.linear_num_value_heads // config.linear_num_key_heads * config.linear_value_head_dim
    rows = values.view(config.linear_num_key_heads, -1, values.shape[-1])
    q, k, v, z = (part.flatten(0, 1) for part in rows.split([config.linear_key_head_dim] * 2 + [each] * 2, 1))
    yield f"blk.{layer}.attn_qkv.weight", torch.cat((q, k, v))
    yield f"blk.{layer}.attn_gate.weight", z


def _qwen3_5(name: str, values: Tensor, config: Any) -> Iterator[Named]:
    """Value heads from grouped to tiled order, before what Qwen3-Next has."""
    n_keys, n_values, dim = config.linear_num_key_heads, config.linear_num_value_heads, config.linear_value_head_dim

    def tiled(part: Tensor, of_head: int) -> Tensor:
        return part.view(n_keys, n_values // n_keys, of_head, *part.shape[1:]).transpose(0, 1).reshape(part.shape)

    n_qk = 2 * n_keys * config.linear_key_head_dim
    if "in_proj_qkv." in name or "conv1d" in name:
        values = torch.cat((values[:n_qk], tiled(values[n_qk:], dim)))
    elif "in_proj_z" in name:
        values = tiled(values, dim)
    elif name.endswith(("in_proj_a.weight", "in_proj_b.weight", ".A_log", ".dt_bias")):
        values = tiled(values, 1)
    elif "linear_attn.out_proj" in name:
        values = tiled(values.T.contiguous(), dim).T
    yield from _qwen3_next(name, values, config)


def _gpt_oss(name: str, values: Tensor, config: Any) -> Iterator[Named]:
    if name.endswith("sinks"):
        name += ".weight"
    name = name.replace("_bias", ".bias") if ".experts." in name else name
    if name.endswith(("gate_up_proj", "down_proj")) and ".experts." in name:
        name, values = f"{name}.weight", values.transpose(-1, -2)
    if "gate_up_proj" in name:
        yield name.replace("gate_up_proj", "gate_proj"), values[:, ::2]
        yield name.replace("gate_up_proj", "up_proj"), values[:, 1::2]
    else:
        yield name, values


def _glm4_moe(name: str, values: Tensor, config: Any) -> Iterator[Named]:
    yield name.replace("e_score_correction_bias", "e_score_correction.bias"), values


def _lfm2(name: str, values: Tensor, config: Any) -> Iterator[Named]:
    if name.endswith("expert_bias"):
        name = f"blk.{name.split('.')[2]}.exp_probs_b.bias"
    if "conv.conv.weight" in name:
        values = values.squeeze(1)
    for old, new in {
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w2": "mlp.down_proj",
        "feed_forward.w3": "mlp.up_proj",
    }.items():
        name = name.replace(old, new)
    name = name.replace("feed_forward.gate", "mlp.gate")
    for part in ("q", "k"):
        name = name.replace(f"{part}_layernorm", f"{part}_norm")
    if name.endswith("ffn_norm.weight"):
        name = f"blk.{name.split('.')[2]}.ffn_norm.weight"
    yield name, values


def _granite(name: str, values: Tensor, config: Any) -> Iterator[Named]:
    layer = name.split(".")[2] if ".layers." in name else ""
    if name.endswith("block_sparse_moe.input_linear.weight"):
        gate, up = values.chunk(2, 1)
        yield f"blk.{layer}.ffn_gate_exps.weight", gate
        yield f"blk.{layer}.ffn_up_exps.weight", up
    elif "shared_mlp" in name:
        suffix = "_shexp" if config.num_local_experts else ""
        parts = zip(("gate", "up"), values.chunk(2), strict=True) if "input" in name else (("down", values),)
        for part, of_part in parts:
            yield f"blk.{layer}.ffn_{part}{suffix}.weight", of_part
    elif "mamba." in name:
        if name.endswith(".dt_bias"):
            name = name.removesuffix(".dt_bias") + ".dt_proj.bias"
        if "conv1d.weight" in name:
            values = values.squeeze()
        if name.endswith("A_log"):
            values = -values.exp()
        if name.endswith(("A_log", ".D")):
            values = values.reshape(-1, 1)
        if "mamba.norm" in name:
            values = values.reshape(config.mamba_n_groups, -1)
        yield name, values
    else:
        yield from _permuted(name, values, config)


def _llama4(name: str, values: Tensor, config: Any) -> Iterator[Named]:
    """Heads stay as they are: pairs of neighbours turn, in llama.cpp too."""
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        name, values = f"{name}.weight", values.transpose(-1, -2)
    if "gate_up_proj" in name:
        for part, of_part in zip(("gate_proj", "up_proj"), values.chunk(2, 1), strict=True):
            yield name.replace("gate_up_proj", part), of_part
    else:
        yield name, values
    if name == "model.norm.weight" and config.rope_parameters["rope_type"] == "llama3":
        yield "rope_freqs.weight", _llama3_factors(config.rope_parameters, config.head_dim)


_CONVERT: dict[str, Callable[[str, Tensor, Any], Iterator[Named]]] = {
    "mixtral": _permuted,
    "qwen3_next": _qwen3_next,
    "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe_text": _qwen3_5,
    "gpt_oss": _gpt_oss,
    "glm4_moe": _glm4_moe,
    "ernie4_5_moe": _glm4_moe,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "granitemoehybrid": _granite,
    "llama4_text": _llama4,
}
