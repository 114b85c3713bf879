"""How many KV blocks fit into memory beside the weights, and how long a window they allow."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kv.storage import token_bytes
from engine.runner import cgroup
from engine.weights.config import ModelConfig

GIB = 1 << 30

CPU_SHARE = 0.5
GPU_SHARE = 0.9
CPU_DEFAULT_MOST = 4 * GIB
"""KV cache on a CPU unless more is asked for: a desktop has other programs to run."""
HOST_SHARE = 0.125
HOST_MOST = {"cpu": GIB, "cuda": 4 * GIB}
"""Host memory for blocks that leave the cache unless more is asked for."""
MIN_WINDOW = 16
"""Tokens below which a model is of no use."""


@dataclass(frozen=True, slots=True)
class KVBudget:
    n_blocks: int
    max_model_len: int
    n_bytes: int
    host_bytes: int
    """Host memory for blocks that leave the cache."""
    why: str
    """For the person: what limited the cache and the window."""


def free_bytes(device: torch.device) -> int:
    """Memory that can be had without pushing anything out; within a container, no more than its limit leaves."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    available, left = psutil.virtual_memory().available, cgroup.left_bytes()
    return available if left is None else min(available, left)


def block_bytes(model: ModelConfig, block_size: int, kv_dtype: torch.dtype) -> int:
    """Bytes of one block of keys and values over all layers."""
    return model.n_layers * block_size * token_bytes(model.n_kv_heads, model.head_dim, kv_dtype)


def step_bytes(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> tuple[int, int]:
    """Roughly what one step holds besides weights and cache: (bytes in any case, bytes per position of the window)."""
    heads = (2 * model.n_heads + 2 * model.n_kv_heads) * model.head_dim
    token = (4 * model.hidden_size + 3 * model.intermediate_size + heads) * max(dtype.itemsize, 4)
    # Logits in float32, their weights in float32 and running sums in float64.
    sampling = config.max_num_seqs * model.vocab_size * 16
    # Keys and values of the sequence at hand in float32, and the rotary tables.
    position = 8 * model.n_kv_heads * model.head_dim + model.rope.rotary_dim * (4 if model.local_rope is None else 8)
    if not config.enable_chunked_prefill:
        position += token
    return config.token_budget * token + sampling, position


def fit(
    config: EngineConfig,
    model: ModelConfig,
    *,
    model_bytes: int,
    free: int,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
) -> KVBudget:
    """Blocks and window for a model whose weights take model_bytes, where `free` bytes are to be had before they load.

    The cache is never larger than max_num_seqs full windows need. The model's own window shrinks to what fits; one that
    the person asked for does not. Raises ConfigError with the numbers when the window or 16 tokens do not fit.
    """
    window = _window(config, model)
    block_size, per_block = config.block_size, block_bytes(model, config.block_size, kv_dtype)
    fixed, per_position = step_bytes(config, model, dtype)
    room, limit = _room(config, free, device)
    room -= model_bytes + fixed
    fitting = max(0, room) // (per_block + per_position * block_size) * block_size
    cache_bytes = room - min(window, fitting) * per_position
    if config.kv_cache_memory is not None:
        cache_bytes, limit = _asked(config.kv_cache_memory, free, cache_bytes)
    elif device.type == "cpu" and config.gpu_memory_utilization is None and cache_bytes > CPU_DEFAULT_MOST:
        cache_bytes, limit = CPU_DEFAULT_MOST, f"the {_gib(CPU_DEFAULT_MOST)} that a CPU's cache takes by default"
    fitting = min(fitting, cache_bytes // per_block * block_size)
    needs = (
        f"weights take {_gib(model_bytes)}, a step {_gib(fixed)}, and {limit} leaves {_gib(max(cache_bytes, 0))} for the KV "
        f"cache, of which a token takes {per_block // block_size:,} bytes"
    )
    if fitting < min(window, MIN_WINDOW):
        raise ConfigError(
            f"Not even {MIN_WINDOW} tokens of KV cache fit into memory: {needs}.",
            "Close other programs, choose a smaller model or a stronger quantisation, or raise --gpu-memory-utilization.",
        )
    if fitting < window and config.max_model_len is not None:
        raise ConfigError(
            f"A window of {window:,} tokens does not fit into memory, {fitting:,} would: {needs}.",
            f"Set --max-model-len to at most {fitting}, a narrower --kv-cache-dtype, or raise --gpu-memory-utilization.",
        )
    most = config.max_num_seqs * -(-min(window, fitting) // block_size)
    n_blocks = min(cache_bytes // per_block, most)
    why = f"limited by {limit}" if n_blocks < most else f"{config.max_num_seqs} full windows need no more"
    if fitting < window:
        why += f"; the model's window of {window:,} tokens was cut to the {fitting:,} that fit"
    host_free = free_bytes(torch.device("cpu")) if device.type == "cuda" else free - model_bytes - fixed - n_blocks * per_block
    return KVBudget(n_blocks, min(window, fitting), n_blocks * per_block, _host_bytes(config, max(0, host_free), device), why)


def _host_bytes(config: EngineConfig, free: int, device: torch.device) -> int:
    """Of the `free` bytes of host memory that are left, those for blocks that leave the cache."""
    if config.swap_space is None:
        return min(HOST_MOST[device.type], int(free * HOST_SHARE))
    if config.swap_space > free:
        raise ConfigError(
            f"swap_space is {_gib(config.swap_space)}, but {_gib(free)} of memory are left for it.",
            "Lower --swap-space, or leave it out.",
        )
    return config.swap_space


def _window(config: EngineConfig, model: ModelConfig) -> int:
    if config.max_model_len is None:
        return model.max_position
    if config.max_model_len > model.max_position:
        raise ConfigError(
            f"max_model_len is {config.max_model_len:,}, but the model was made for {model.max_position:,} tokens.",
            f"Set --max-model-len to at most {model.max_position}, or leave it out.",
        )
    return config.max_model_len


def _room(config: EngineConfig, free: int, device: torch.device) -> tuple[int, str]:
    """Bytes for weights, activations and cache together, and what that is in words."""
    if config.kv_cache_memory is not None:
        return free, f"{_gib(free)} of free memory"
    share = config.gpu_memory_utilization or (CPU_SHARE if device.type == "cpu" else GPU_SHARE)
    return int(free * share), f"{share:.0%} of {_gib(free)} of free memory"


def _asked(kv_cache_memory: int, free: int, left: int) -> tuple[int, str]:
    if kv_cache_memory > left:
        raise ConfigError(
            f"kv_cache_memory is {_gib(kv_cache_memory)}, but of {_gib(free)} of free memory weights and activations leave "
            f"{_gib(max(left, 0))}.",
            "Lower --kv-cache-memory, or leave it out to have the cache fitted.",
        )
    return kv_cache_memory, f"--kv-cache-memory {_gib(kv_cache_memory)}"


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / GIB:.2f} GiB"
