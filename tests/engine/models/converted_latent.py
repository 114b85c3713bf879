"""GGUF files of tiny models as DeepseekV2Model and Gemma4Model of llama.cpp's convert_hf_to_gguf.py make them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.engine.models.converted import _describe
from tests.engine.models.converted_sparse import _merged

_BY_SIGMOID = ("deepseek_v3", "glm4_moe_lite")
ARCHITECTURES = {
    **dict.fromkeys(("deepseek_v2", *_BY_SIGMOID, "youtu"), "deepseek2"),
    "gemma4_text": "gemma4",
}
"""By model_type."""


def to_gguf(
    folder: Path,
    config: Any,
    path: Path,
    *,
    in_two: bool = True,
    qtype: gguf.GGMLQuantizationType | None = None,
    silent: Collection[str] = (),
) -> None:
    """folder: as tiny.saved has written it. in_two: as newer files have kv_b_proj, and sizes of heads. qtype: of matrices.
    silent: keys that the file does not have.
    """
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    known = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    is_gemma = config.model_type == "gemma4_text"
    (_describe_gemma4 if is_gemma else _describe_deepseek)(writer, SimpleNamespace(**config.to_dict()), in_two)
    convert = _gemma4 if is_gemma else _deepseek
    for stored, values in _merged(load_file(folder / "model.safetensors")):
        for name, part in convert(stored, values, config, in_two):
            gguf_name = names.get_name(name, (".weight", ".bias")) or name
            assert gguf_name != name or name.startswith("blk."), name
            data, raw = part.float().contiguous().numpy(), None
            if qtype is not None and data.ndim > 1:
                data, raw = gguf.quants.quantize(data, qtype), qtype
            writer.add_tensor(gguf_name, data, raw_dtype=raw)
    if is_gemma:
        dim = config.per_layer_config["full_attention"].head_dim
        n_turned = int(0.25 * dim / 2)
        writer.add_tensor("rope_freqs.weight", torch.tensor([1.0] * n_turned + [1e30] * (dim // 2 - n_turned)).numpy())
    for key in silent:
        del writer.kv_data[0][f"{architecture}.{key}"]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe_deepseek(writer: gguf.GGUFWriter, config: Any, in_two: bool) -> None:
    head_dim, value_dim = config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    rank, rope_dim = config.kv_lora_rank, config.qk_rope_head_dim
    changed = {
        "head_dim": rank + rope_dim if in_two else head_dim,
        "num_key_value_heads": 1 if in_two else config.num_attention_heads,
    }
    _describe(writer, SimpleNamespace(**{**vars(config), **changed}))
    kv = writer.kv_data[0]
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        kv.pop(f"deepseek2.{name}")
    writer.add_key_length(rank + rope_dim if in_two else head_dim)
    writer.add_value_length(rank if in_two else value_dim)
    if in_two:
        writer.add_key_length_mla(head_dim)
        writer.add_value_length_mla(value_dim)
    writer.add_rope_dimension_count(rope_dim)
    writer.add_kv_lora_rank(rank)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    if config.rope_parameters["rope_type"] == "yarn":
        writer.add_rope_scaling_yarn_log_mul(0.1 * config.rope_parameters["mscale_all_dim"])
    if not hasattr(config, "n_routed_experts"):
        return
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok or 6)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    is_sigmoid = config.model_type in _BY_SIGMOID
    writer.add_expert_weights_norm(is_sigmoid and config.norm_topk_prob)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if is_sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
    if config.n_group and (is_sigmoid or config.topk_method != "greedy"):
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)


def _deepseek(name: str, values: Tensor, config: Any, in_two: bool) -> Iterator[tuple[str, Tensor]]:
    if name.endswith("e_score_correction_bias"):
        yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", values
    elif name.endswith("kv_b_proj.weight") and in_two:
        rows = values.view(config.num_attention_heads, -1, values.shape[1])
        keys, of_values = rows.split((config.qk_nope_head_dim, config.v_head_dim), 1)
        yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
        yield name.replace("kv_b_proj", "v_b_proj"), of_values
    else:
        yield name, values


def _describe_gemma4(writer: gguf.GGUFWriter, config: Any, in_two: bool) -> None:
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    of_all = config.per_layer_config[str(slides.index(False))]
    n_layers, heads = config.num_hidden_layers, config.num_key_value_heads
    first = n_layers - config.num_kv_shared_layers
    wide = [config.intermediate_size * (2 if config.use_double_wide_mlp and i >= first else 1) for i in range(n_layers)]
    of_layers = [heads if slide else of_all.get("num_key_value_heads", heads) for slide in slides]
    rope = config.rope_parameters
    changed = {"intermediate_size": wide, "num_key_value_heads": of_layers, "head_dim": of_all["head_dim"]}
    whole = {"full_attention": {**rope["full_attention"], "partial_rotary_factor": 1.0}}
    _describe(writer, SimpleNamespace(**{**vars(config), **changed, "rope_parameters": whole}))
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(slides)
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_dimension_count_swa(config.head_dim)
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    if config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def _gemma4(name: str, values: Tensor, config: Any, in_two: bool) -> Iterator[tuple[str, Tensor]]:
    layer = name.split(".")[2]
    if name.endswith("router.scale"):
        yield f"blk.{layer}.ffn_gate_inp.scale", values
    elif name.endswith("per_expert_scale"):
        yield f"blk.{layer}.ffn_down_exps.scale", values
    else:
        yield name if name.endswith(".weight") else f"{name}.weight", values
