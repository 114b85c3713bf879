"""The cache fitted to memory, in numbers."""

from __future__ import annotations

import re

import pytest
import torch

from app.options import options_of
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner import memory
from engine.weights.config import ModelConfig, RopeConfig

GIB = 1 << 30
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def model(**changes) -> ModelConfig:
    """A KV token takes 2 x 16 layers x 2 heads x 64 dims x 4 bytes = 16 KiB in float32."""
    fields = {
        "family": "llama",
        "vocab_size": 32_000,
        "hidden_size": 1024,
        "n_layers": 16,
        "n_heads": 16,
        "n_kv_heads": 2,
        "head_dim": 64,
        "intermediate_size": 4096,
        "rms_eps": 1e-5,
        "max_position": 8192,
        "tie_embeddings": True,
        "attention_bias": False,
        "attention_output_bias": False,
        "mlp_bias": False,
        "ropes": (RopeConfig(10_000.0, 64),) * 16,
        "windows": (0,) * 16,
        "attention_scale": 0.125,
        "attn_soft_cap": 0.0,
        "logit_soft_cap": 0.0,
        "embedding_scale": 1.0,
        "activation": "silu",
    }
    return ModelConfig(**{**fields, **changes})


def fit(free: float, *, weights: float = 1.0, device: torch.device = CPU, of: ModelConfig | None = None, **settings):
    """free and weights in GiB."""
    return memory.fit(
        EngineConfig(**settings),
        of or model(),
        model_bytes=int(weights * GIB),
        free=int(free * GIB),
        device=device,
        dtype=torch.float32,
        kv_dtype=torch.float32,
    )


def test_a_cpu_takes_no_more_than_4_gib_by_default_and_says_so() -> None:
    budget = fit(64)
    assert budget.n_bytes == 4 * GIB
    assert budget.groups[0].n_blocks == 4 * GIB // (16 * 16 * 1024)
    assert budget.max_model_len == 8192
    assert "4.00 GiB" in budget.why


def block_bytes(kv_dtype: torch.dtype) -> int:
    (group,) = memory.kv_groups(model(), 16, kv_dtype, 8192)
    return group.block_bytes


def test_a_block_of_8_bits_has_a_quarter_of_the_bytes_and_int8_its_scales() -> None:
    assert block_bytes(torch.float32) == 16 * 16 * 1024
    assert block_bytes(torch.float8_e4m3fn) == 16 * 16 * 1024 // 4
    assert block_bytes(torch.int8) == 16 * (16 * 1024 // 4 + 2 * 16 * 2 * 4)


def test_weights_activations_and_cache_stay_within_the_stated_share() -> None:
    fixed, per_position = memory.step_bytes(EngineConfig(), model(), torch.float32)
    for device, free, share in ((CPU, 4.0, 0.5), (GPU, 4.0, 0.9)):
        budget = fit(free, device=device)
        taken = GIB + fixed + 8192 * per_position + budget.n_bytes
        assert share * free * GIB * 0.99 < taken <= share * free * GIB
        assert f"{share:.0%}" in budget.why
    assert fit(64, gpu_memory_utilization=0.125).n_bytes > 6 * GIB, "a share that was asked for is not capped"


def test_the_cache_is_never_larger_than_all_full_windows() -> None:
    budget = fit(64, max_num_seqs=3, max_model_len=100)
    assert budget.groups[0].n_blocks == 3 * 7
    assert budget.max_model_len == 100
    assert "3 full windows" in budget.why


def test_an_exact_size_is_taken_as_given_even_above_the_default_share() -> None:
    budget = fit(10, kv_cache_memory=8 * GIB)
    assert budget.n_bytes == 8 * GIB
    with pytest.raises(ConfigError, match=r"kv_cache_memory is 8\.00 GiB, but of 8\.50 GiB"):
        fit(8.5, kv_cache_memory=8 * GIB)


def test_the_models_own_window_shrinks_to_what_fits_and_says_so() -> None:
    budget = fit(4, of=model(max_position=1 << 20))
    assert budget.max_model_len == budget.groups[0].n_blocks * budget.block_size < 1 << 16
    assert "1,048,576 tokens was cut to the" in budget.why
    fixed, per_position = memory.step_bytes(EngineConfig(), model(), torch.float32)
    assert GIB + fixed + budget.max_model_len * per_position + budget.n_bytes <= 2 * GIB


def test_a_window_that_was_asked_for_does_not_shrink() -> None:
    with pytest.raises(ConfigError, match=r"A window of 8,192 tokens does not fit into memory, \d,\d{3} would") as error:
        fit(2.28, max_model_len=8192)
    fitting = int(error.value.hint.split("at most ")[1].split(",")[0])
    assert fit(2.28, max_model_len=fitting).max_model_len == fitting
    assert fit(2.28).max_model_len == fitting


def test_a_window_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="9,000, but the model was made for 8,192"):
        fit(64, max_model_len=9000)


def test_no_room_for_16_tokens_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match=r"Not even 16 tokens.*weights take 3\.00 GiB.*50% of 4\.00 GiB"):
        fit(4, weights=3)
    with pytest.raises(ConfigError, match="Not even 16 tokens"):
        fit(64, kv_cache_memory=1000)


def test_uncut_prompts_need_activations_for_a_whole_window() -> None:
    cut, uncut = fit(3), fit(3, enable_chunked_prefill=False)
    assert uncut.groups[0].n_blocks < cut.groups[0].n_blocks


def test_free_memory_is_what_the_system_says() -> None:
    assert 1 << 20 < memory.free_bytes(CPU) < 1 << 50


@pytest.mark.parametrize(("window", "size"), [(16, 16), (8192, 16), (8193, 32), (32_768, 32), (32_769, 64), (131_072, 64)])
def test_blocks_of_auto_size_grow_with_the_window(window: int, size: int) -> None:
    budget = fit(64, of=model(max_position=window), kv_cache_memory=16 << 30)
    assert budget.max_model_len == window and budget.block_size == size == memory.block_size_for(window)
    assert budget.n_bytes == budget.groups[0].n_blocks * size * (16 << 10)
    for asked in (16, 128):
        assert fit(64, of=model(max_position=window), kv_cache_memory=16 << 30, block_size=asked).block_size == asked


def test_blocks_of_auto_size_do_not_depend_on_free_memory_so_that_keys_do_not() -> None:
    for cache in (100, 400, 600):  # MiB, of which a token takes 16 KiB
        budget = fit(64, of=model(max_position=131_072), kv_cache_memory=cache << 20)
        assert budget.max_model_len == cache * 64 and budget.block_size == 64
    asked = fit(64, of=model(max_position=131_072), kv_cache_memory=1 << 30, max_model_len=9000)
    assert (asked.max_model_len, asked.block_size) == (9000, 32), "the window that was asked for counts"


def test_the_settings_description_of_auto_names_the_sizes_in_force() -> None:
    (option,) = (option for option in options_of(EngineConfig, "serving") if option.name == "block_size")
    for longest, size in memory.BLOCK_SIZES:
        assert re.search(rf" {size}( for windows)? up to {longest}\b", option.description)
    assert f"{memory.LARGEST_BLOCK} for longer ones" in option.description
