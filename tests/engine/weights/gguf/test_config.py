"""GGUF metadata turns into the configuration that llama.cpp would run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine.errors import ModelLoadError
from engine.weights.config import ModelConfig
from engine.weights.gguf.config import from_gguf

SHAPES = {"token_embd.weight": (100, 64)}


ROUTED = {**SHAPES, "blk.1.ffn_gate_inp.weight": (16, 64), "blk.1.ffn_gate_shexp.weight": (96, 64)}
"""With experts in one layer."""


def _config(
    family: str = "llama",
    rope_factors: tuple[float, ...] | None = None,
    shapes: dict[str, tuple[int, ...]] = SHAPES,
    **changes: Any,
) -> ModelConfig:
    fields: dict[str, Any] = {
        "block_count": 7,
        "context_length": 4096,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    if family == "gemma3":
        fields["attention.sliding_window"] = 512
    fields |= {name.replace("__", "."): value for name, value in changes.items()}
    metadata = {"general.architecture": family} | {f"{family}.{name}": value for name, value in fields.items()}
    return from_gguf(metadata, shapes, rope_factors, "x.gguf")


def test_defaults_of_absent_keys() -> None:
    config = _config()
    assert (config.head_dim, config.ropes[0].theta, config.ropes[0].rotary_dim, config.ropes[0].scaling) == (
        16,
        10_000,
        16,
        "none",
    )
    assert config.vocab_size == 100 and config.tie_embeddings and config.attention_scale == 0.25


def test_linear_scaling_new_and_old() -> None:
    for changes in ({"rope__scaling__type": "linear", "rope__scaling__factor": 8.0}, {"rope__scale_linear": 8.0}):
        rope = _config(**changes).ropes[0]
        assert (rope.scaling, rope.params) == ("linear", {"factor": 8.0})


def test_yarn() -> None:
    config = _config(rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=2048)
    assert config.ropes[0].scaling == "yarn" and config.max_position == 8192
    assert config.ropes[0].params["original_max_position_embeddings"] == 2048
    assert math.isclose(config.ropes[0].params["attention_factor"], 0.1 * math.log(4) + 1)


def test_factors_win_over_scaling_keys() -> None:
    assert _config(rope_factors=(1.0,) * 8, rope__scaling__type="linear").ropes[0].scaling == "factors"


def test_gemma_windows_period_flags_and_default() -> None:
    assert _config("gemma3").windows == (512,) * 5 + (0, 512)
    assert _config("gemma3", attention__sliding_window_pattern=2).windows == (512, 0, 512, 0, 512, 0, 512)
    flags = [True, False, False, True, True, True, False]
    for pattern in (flags, memoryview(bytes(flags)).cast("?")):
        assert _config("gemma3", attention__sliding_window_pattern=pattern).windows == (512, 0, 0, 512, 512, 512, 0)


def test_gemma_scaling_spares_the_layers_with_a_window() -> None:
    config = _config("gemma3", rope__scaling__type="linear", rope__scaling__factor=8.0, rope__freq_base=1e6)
    assert [(rope.theta, rope.scaling) for rope in config.ropes] == [(1e4, "none")] * 5 + [(1e6, "linear"), (1e4, "none")]


@pytest.mark.parametrize(("seeing", "text"), [("qwen2vl", "qwen2"), ("qwen3vl", "qwen3")])
def test_a_model_that_sees_is_its_text_half(seeing: str, text: str) -> None:
    assert _config(seeing, rope__dimension_sections=[8, 12, 12, 0]) == _config(text)


def test_windows_of_olmo3_are_not_scaled_and_olmo2_has_none() -> None:
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    config = _config("olmo2", attention__sliding_window=9, **yarn)
    assert [(bool(window), rope.scaling) for window, rope in zip(config.windows[2:4], config.ropes[2:4], strict=True)] == [
        (True, "none"),
        (False, "yarn"),
    ]
    assert not any(_config("olmo2").windows)


LLAMA4 = {"expert_count": 16, "expert_used_count": 1, "expert_feed_forward_length": 96}


def test_llama4_is_what_llama_cpp_takes_for_all_of_them() -> None:
    config = _config("llama4", shapes=ROUTED, **LLAMA4)
    assert config.windows == (8192, 8192, 8192, 0, 8192, 8192, 8192) and config.chunked_windows
    assert [rope is not None for rope in config.ropes] == [True, True, True, False, True, True, True]
    assert (config.query_growth, config.query_shift, config.ropes[0].theta) == ((0.1, 8192), 1, 5e5)
    assert config.head_norms and not _config("llama4", shapes=ROUTED, **{**LLAMA4, "expert_count": 128}).head_norms
    assert (config.experts.layers, config.experts.shared_width, config.experts.gains_first) == ((1,), 96, True)
    assert config.experts.routing.scores == "chosen_sigmoid"
    assert _config("llama4", shapes=ROUTED, **LLAMA4, expert_gating_func=2).experts == config.experts


def test_gemma_27b_divides_by_hidden_size_per_head() -> None:
    config = _config("gemma3", block_count=62, attention__key_length=32)
    assert config.attention_scale == 16**-0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "bert"}, "architecture bert"),
        ({"block_count": 0}, "block_count is 0"),
        ({"block_count": 10**9}, "block_count is 1000000000"),
        ({"block_count": "7"}, "block_count is '7'"),
        ({"block_count": True}, "block_count is True"),
        ({"embedding_length": None}, "embedding_length is missing"),
        ({"attention__head_count_kv": 3}, "does not divide"),
        ({"attention__head_count_kv": [2, 2, 1]}, "differs from layer to layer"),
        ({"attention__value_length": 8}, "value_length"),
        ({"embedding_length": 2}, "attention.key_length is missing and would be 0"),
        ({"attention__layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon is nan"),
        ({"rope__dimension_count": 17}, "cannot rotate in pairs"),
        ({"rope__scaling__type": "longrope"}, "longrope"),
        ({"family": "gemma3", "attention__sliding_window_pattern": [True]}, "1 flags for 7 layers"),
        ({"family": "glm4", "rope__dimension_sections": [2, 3, 3]}, "rope.dimension_sections is there"),
        ({"family": "stablelm", "use_parallel_residual": True}, "use_parallel_residual is true"),
        ({"family": "command-r", "attention__layer_norm_epsilon": 1e-5}, "logit_scale is missing"),
        ({"rope_factors": (1.0,) * 7 + (0.0,)}, "rope_freqs"),
        ({"family": "llama4"}, "expert_count is not to be had"),
        ({"family": "llama4", "attention__sliding_window": 0}, "sliding_window is 0, but .* 8192"),
        ({"family": "llama4", "shapes": ROUTED, **LLAMA4, "rope__freq_base_swa": 1e4}, "freq_base_swa differs"),
        ({"family": "llama4", "shapes": ROUTED, **LLAMA4, "rope__scaling__type": "yarn"}, "scaling.type is yarn"),
        ({"family": "gpt-oss"}, "ffn_gate_inp.weight, which chooses experts, is missing"),
        ({"family": "gemma4", "feed_forward_length": ["a"] * 7}, "feed_forward_length is 'a'"),
        ({"family": "gemma4", "attention__head_count_kv": [2.0] * 7}, "head_count_kv is 2.0"),
        (
            {"family": "gemma4", "attention__sliding_window": 9, "rope__dimension_count_swa": 60},
            "rope.dimension_count_swa is 60: such a part of 16 dims cannot rotate",
        ),
        ({"family": "deepseek2", "attention__temperature_scale": 0.1}, "attention.temperature_scale is there"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as raised:
        _config(**changes)
    assert "x.gguf" in raised.value.message and raised.value.hint


def test_a_file_without_embeddings_is_refused() -> None:
    metadata = {"general.architecture": "llama"} | {f"llama.{name}": 4 for name in ("block_count", "embedding_length")}
    with pytest.raises(ModelLoadError, match=r"token_embd\.weight is missing"):
        from_gguf(metadata | {"llama.attention.head_count": 1}, {})


def test_a_repeated_number_per_layer_is_one_number() -> None:
    for numbers in ([2] * 7, memoryview(bytes([2] * 7))):
        assert _config(attention__head_count_kv=numbers).n_kv_heads == 2
