"""config.json, as transformers 4 and 5 write it, means here what it means to transformers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from transformers import AutoConfig

from engine.errors import ModelLoadError
from engine.models.rotary import inverse_frequencies
from engine.weights.config import ModelConfig
from engine.weights.hf.config import READERS, TEXT_HALVES, from_hf

SIZES = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 5e5}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}

NOT_IN_TRANSFORMERS = {"kimi_k2"}
"""Model types that are known to Pagewell only."""


def _config(model_type: str = "llama", **settings: Any) -> ModelConfig:
    return from_hf({"model_type": model_type, **SIZES, **settings}, "m/config.json")


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("llama", {}),
        ("llama", {"head_dim": 32, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("llama", {"rms_norm_eps": 1e-5}),
        ("mistral", {}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 8, "head_dim": 32}),
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": None}),
        ("qwen3", {"head_dim": 48}),
        ("qwen3", {"attention_bias": True, "use_sliding_window": True, "max_window_layers": 2}),
        ("gemma3_text", {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": 8}),
        ("gemma3_text", {"tie_word_embeddings": False, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}),
    ],
)
def test_a_saved_configuration_means_the_same(model_type: str, settings: dict[str, Any]) -> None:
    oracle = AutoConfig.for_model(model_type, **SIZES, **settings)
    config = from_hf(oracle.to_dict())
    assert config.family == model_type.removesuffix("_text")
    assert (config.n_layers, config.n_heads, config.n_kv_heads) == (7, 4, 2)
    assert config.head_dim == (getattr(oracle, "head_dim", None) or 16)
    assert config.tie_embeddings == oracle.tie_word_embeddings
    assert config.rms_eps == oracle.rms_norm_eps
    types = getattr(oracle, "layer_types", None)
    window = oracle.sliding_window or 0 if hasattr(oracle, "sliding_window") else 0
    assert config.windows == (tuple(window if t == "sliding_attention" else 0 for t in types) if types else (window,) * 7)
    assert config.attention_scale == (getattr(oracle, "query_pre_attn_scalar", None) or config.head_dim) ** -0.5
    assert config.logit_soft_cap == (getattr(oracle, "final_logit_softcapping", None) or 0.0)
    assert config.attn_soft_cap == (getattr(oracle, "attn_logit_softcapping", None) or 0.0)


@pytest.mark.parametrize("model_type", [name for name in READERS if name not in NOT_IN_TRANSFORMERS])
def test_absent_fields_have_the_defaults_of_transformers(model_type: str) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "num_key_value_heads"}
    sizes |= {"num_attention_heads": 32, "hidden_size": 256}
    complete = AutoConfig.for_model(model_type, **sizes).to_dict()
    of_half = next((usual for text_type, usual in TEXT_HALVES.values() if text_type == model_type), {})
    assert from_hf({"model_type": model_type, **of_half, **sizes}) == from_hf(complete)


def test_biases_by_family() -> None:
    assert (_config("qwen2").attention_bias, _config("qwen2").attention_output_bias) == (True, False)
    biased = _config("qwen3", attention_bias=True)
    assert (biased.attention_bias, biased.attention_output_bias) == (True, True)
    assert not _config("llama").attention_bias


def test_rope_written_by_transformers_4_and_5() -> None:
    old = _config(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    new = _config(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    assert old.ropes[0] == new.ropes[0]
    rope = old.ropes[0]
    assert (rope.theta, rope.scaling, rope.params, old.max_position) == (
        5e5,
        "linear",
        {"factor": 2.0},
        8192,
    )


def test_rope_of_each_kind() -> None:
    llama3 = _config(rope_theta=5e5, rope_scaling=LLAMA3)
    assert llama3.ropes[0].params == {name: value for name, value in LLAMA3.items() if name != "rope_type"}
    assert llama3.max_position == 4096
    yarn = _config(rope_parameters=YARN, max_position_embeddings=1024)
    assert yarn.max_position == 4096
    assert (
        yarn.ropes[0].params["beta_fast"] == 32
        and yarn.ropes[0].params["attention_factor"] is None
        and yarn.ropes[0].params["truncate"]
    )
    dynamic = _config(rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    assert dynamic.ropes[0].params == {"factor": 2.0, "original_max_position_embeddings": 4096}
    half = _config(partial_rotary_factor=0.5)
    assert (half.head_dim, half.ropes[0].rotary_dim) == (16, 8)


def test_gemma_rope_written_by_transformers_4_and_5() -> None:
    old = _config("gemma3_text", rope_theta=1e6, rope_local_base_freq=2e4, rope_scaling={"rope_type": "linear", "factor": 8.0})
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    new = _config("gemma3_text", rope_parameters=parameters)
    assert old == new
    turned = {(bool(window), rope.theta, rope.scaling) for window, rope in zip(old.windows, old.ropes, strict=True)}
    assert turned == {(True, 2e4, "none"), (False, 1e6, "linear")}
    assert old.max_position == 4096


def test_gemma_windows_follow_an_older_files_period() -> None:
    assert _config("gemma3_text", sliding_window=8, sliding_window_pattern=3).windows == (8, 8, 0, 8, 8, 0, 8)


def test_gemma_4_ends_with_a_layer_that_sees_all_whatever_is_listed() -> None:
    types = ["sliding_attention", "full_attention"] * 3 + ["sliding_attention"]
    config = _config("gemma4_text", layer_types=types, sliding_window=8)
    oracle = AutoConfig.for_model("gemma4_text", **SIZES, layer_types=list(types))
    assert config.windows == tuple(8 if kind == "sliding_attention" else 0 for kind in oracle.layer_types)
    assert config == _config("gemma4_text", layer_types=[*types[:-1], "full_attention"], sliding_window=8)


def test_lfm2_rounds_no_width_whose_multiplier_is_null() -> None:
    """As modeling_lfm2.py's Lfm2MLP has it: two thirds, and the multiplier and whole blocks only where it is there."""
    assert _config("lfm2", intermediate_size=1000).intermediate_size == 768
    assert _config("lfm2", intermediate_size=1000, block_ffn_dim_multiplier=None).intermediate_size == 666


def test_a_scale_of_attention_of_0_is_none() -> None:
    for name in ("mscale", "mscale_all_dim"):
        scaled = _config(rope_parameters={**YARN, name: 0})
        assert inverse_frequencies(scaled.ropes[0], 64)[1] == inverse_frequencies(_config(rope_parameters=YARN).ropes[0], 64)[1]
    latent = _config("deepseek_v3", rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 0})
    assert latent.attention_scale == _config("deepseek_v3").attention_scale


def test_the_text_half_of_a_gemma_that_sees() -> None:
    config = from_hf({"model_type": "gemma3", "text_config": {"hidden_size": 64, "num_hidden_layers": 7}})
    assert (config.family, config.hidden_size, config.n_layers, config.n_heads, config.vocab_size) == (
        "gemma3",
        64,
        7,
        8,
        262_208,
    )


@pytest.mark.parametrize(
    ("settings", "turned", "windows"),
    [
        ({}, [1, 1, 1, 0, 1, 1, 1], [8192, 8192, 8192, 0, 8192, 8192, 8192]),
        ({"no_rope_layers": [], "attention_chunk_size": 16}, [1, 1, 1, 0, 1, 1, 1], [16, 16, 16, 0, 16, 16, 16]),
        ({"no_rope_layer_interval": 2, "attention_chunk_size": None}, [1, 0, 1, 0, 1, 0, 1], [0] * 7),
        ({"no_rope_layers": [1] * 7, "layer_types": ["full_attention"] * 7}, [1] * 7, [0] * 7),
    ],
)
@pytest.mark.parametrize("seeing", [False, True])
def test_llama4_turns_layers_that_see_a_chunk(
    seeing: bool, settings: dict[str, Any], turned: list[int], windows: list[int]
) -> None:
    text = {"model_type": "llama4_text", **SIZES, **settings}
    config = from_hf({"model_type": "llama4", "text_config": text} if seeing else text)
    assert [int(rope is not None) for rope in config.ropes] == turned
    assert config.chunked_windows and list(config.windows) == windows


def test_llama4_has_experts_in_every_so_many_layers_or_in_those_that_are_listed() -> None:
    scout, maverick = _config("llama4_text"), _config("llama4_text", interleave_moe_layer_step=2, num_local_experts=128)
    assert scout.experts.layers == tuple(range(7)) and maverick.experts.layers == (1, 3, 5)
    assert (scout.experts.width, scout.experts.shared_width, scout.intermediate_size) == (96, 96, 16_384)
    assert _config("llama4_text", moe_layers=[0, 6]).experts.layers == (0, 6)
    assert _config("llama4_text", moe_layers=[], interleave_moe_layer_step=0).experts is None, "as MobileLLM-R1 has it"


@pytest.mark.parametrize("tuned", [True, 4])
def test_llama4_tunes_temperatures_where_it_says_so(tuned: Any) -> None:
    config = _config("llama4_text", attn_temperature_tuning=tuned, attn_scale=0.2, floor_scale=64)
    assert (config.query_growth, config.query_shift) == ((0.2, 64), 1)
    assert _config("llama4_text", attn_temperature_tuning=False).query_growth is None


def test_a_null_of_a_text_half_is_no_absent_field_but_where_the_half_has_a_default() -> None:
    def windows(**text: Any) -> set[int]:
        return set(from_hf({"model_type": "mistral3", "text_config": {**SIZES, "model_type": "mistral", **text}}).windows)

    assert (windows(), windows(sliding_window=None), windows(sliding_window=64)) == ({4096}, {0}, {64})
    text = {**SIZES, "max_position_embeddings": None, "model_type": None}
    assert from_hf({"model_type": "qwen2_vl", "text_config": text}).max_position == 32_768


@pytest.mark.parametrize("limit", [[0.0, math.inf], [0, math.inf], [0.0, {"__float__": "Infinity"}], [0.0, None], None])
def test_time_steps_without_a_limit_are_written_in_several_ways(limit: list[Any] | None) -> None:
    assert _config("bamba", time_step_limit=limit) == _config("bamba")


def test_a_saved_bamba_has_no_limit() -> None:
    saved = json.loads(AutoConfig.for_model("bamba", **SIZES, mamba_n_heads=8).to_json_string())
    assert "time_step_limit" in saved
    assert from_hf(saved).recurrent == _config("bamba", mamba_n_heads=8).recurrent


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("qwen3_5_text", {"layer_types": ["full_attention"] * 7}),
        ("qwen3_5_text", {"full_attention_interval": 1}),
        ("bamba", {"attn_layer_indices": list(range(7))}),
    ],
)
def test_without_a_layer_that_has_one_there_is_no_state(model_type: str, settings: dict[str, Any]) -> None:
    assert _config(model_type, **settings).recurrent is None
    assert _config(model_type).recurrent is not None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "rwkv"}, "type rwkv are not supported"),
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "does not divide 4"),
        ({"hidden_act": "relu"}, "hidden_act is relu"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "rope_type is spiral"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "short_factor is missing"),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}},
            "long_factor is not a list of 8 positive numbers",
        ),
        ({"model_type": "lfm2", "full_attn_idxs": 3}, "full_attn_idxs is not a list"),
        ({"model_type": "exaone4", "sliding_window_pattern": ""}, "sliding_window_pattern is empty"),
        ({"model_type": "vaultgemma", "sliding_window": None}, "sliding_window is not its size"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 1]}, "no_rope_layers is not a list of 7"),
        ({"model_type": "starcoder2", "hidden_act": "silu"}, "hidden_act is silu"),
        ({"model_type": "stablelm", "qk_layernorm": True}, "qk_layernorm is true"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": "linear"}, "expected an object"),
        ({"partial_rotary_factor": 0.2}, "cannot rotate in pairs"),
        ({"hidden_size": 2}, "head_dim is missing and would be 0"),
        ({"tie_word_embeddings": "yes"}, "expected true or false"),
        ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["full_attention"]}, "list of 7"),
        ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["ring"] * 7}, "list of 7"),
        ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": [["full_attention"]] * 7}, "list of 7"),
        ({"model_type": "qwen3_5_text", "layer_types": [{}] * 7}, "list of 7"),
        ({"rope_theta": 1e300}, "rope_theta is 1e"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 1e308}}, "factor is 1e"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "causal"),
        ({"model_type": "gemma3"}, "text_config is missing"),
        (
            {"model_type": "qwen3_5_text", "linear_num_value_heads": 3, "linear_num_key_heads": 2},
            "linear_num_key_heads is 2, which does not divide 3",
        ),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 0]}, "no_rope_layers is not a list of 7"),
        ({"model_type": "llama4_text", "moe_layers": [7]}, "moe_layers is not a list of layers below 7"),
        ({"model_type": "llama4_text", "num_experts_per_tok": 17}, "num_experts_per_tok is 17, but there are 16 experts"),
        ({"model_type": "llama4_text", "layer_types": ["sliding_attention"] * 7}, "list of 7 of chunked_attention"),
        (
            {"model_type": "llama4_text", "layer_types": ["chunked_attention"] * 7, "attention_chunk_size": None},
            "attention_chunk_size is null",
        ),
        ({"model_type": "llama4_text", "attn_temperature_tuning": "on"}, "attn_temperature_tuning is 'on'"),
        ({"model_type": "llama4_text", "rope_parameters": YARN}, "use_qk_norm is true, which of .* rope type yarn"),
        ({"model_type": "bamba", "mamba_n_heads": 8, "mamba_n_groups": 3}, "mamba_n_groups is 3, which does not divide 8"),
        ({"model_type": "bamba", "time_step_limit": [0.0, 0.1]}, "time_step_limit is .*limit are not supported"),
        ({"model_type": "bamba", "time_step_limit": [0.001, math.inf]}, "time_step_limit is .*limit are not supported"),
        ({"model_type": "bamba", "time_step_limit": [0.0]}, "time_step_limit is .*limit are not supported"),
    ],
)
def test_a_wrong_value_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as raised:
        _config(**{"model_type": "llama", **settings})
    assert "m/config.json" in raised.value.message and raised.value.hint
