"""How many KV blocks fit into memory beside the weights, and how long a window they allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch
from msgspec import structs

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kv.groups import KVGroup
from engine.kv.storage import token_bytes
from engine.runner import cgroup
from engine.runner.shares import Shares
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


BLOCK_SIZES = ((8192, 16), (32_768, 32))
LARGEST_BLOCK = 64
"""What auto means for block_size: (longest window in tokens, tokens of a block), and that of longer ones."""


@dataclass(frozen=True, slots=True)
class KVBudget:
    block_size: int
    """Tokens of a block."""
    groups: tuple[KVGroup, ...]
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


def kv_groups(model: ModelConfig, block_size: int, kv_dtype: torch.dtype, window: int) -> list[KVGroup]:
    """Layers whose memory is of one kind, as yet without blocks: those of all tokens first, then by window, then states.

    A layer whose own window is not below the model's needs all tokens.
    """
    recurrent = model.recurrent
    states = recurrent.layers if recurrent is not None else ()
    by_window: dict[int, list[int]] = {}
    for i in (i for i in range(model.n_layers) if i not in states):
        by_window.setdefault(model.windows[i] if model.windows[i] < window else 0, []).append(i)
    per_layer = block_size * token_bytes(model.n_kv_heads, model.head_dim, kv_dtype)
    groups = [
        KVGroup(n_blocks=0, layers=tuple(layers), window=of_group, block_bytes=len(layers) * per_layer)
        for of_group, layers in sorted(by_window.items())
    ]
    if states:
        state_bytes = sum(math.prod(shape) for shape in recurrent.state_shapes) * torch.float32.itemsize
        groups.append(KVGroup(n_blocks=0, layers=states, recurrent=True, block_bytes=len(states) * state_bytes))
    return groups


def step_bytes(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> tuple[int, int]:
    """Roughly what one step holds besides weights and cache: (bytes in any case, bytes per position of the window)."""
    heads = (2 * model.n_heads + 2 * model.n_kv_heads) * model.head_dim
    token = (4 * model.hidden_size + 3 * model.intermediate_size + heads) * max(dtype.itemsize, 4)
    # Logits in float32, their weights in float32 and running sums in float64.
    sampling = config.max_num_seqs * model.vocab_size * 16
    # Keys and values of the sequence at hand in float32, and the rotary tables.
    position = 8 * model.n_kv_heads * model.head_dim + 4 * sum(rope.rotary_dim for rope in model.distinct_ropes)
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

    The cache is never larger than max_num_seqs full windows need. The model's own window shrinks to what fits; one that the
    person asked for does not. Raises ConfigError with the numbers when the window or 16 tokens do not fit.
    """
    window = _window(config, model)
    # By what the model or the person asks for and not by what fits: a prefix on disk, or from another process, has to be found
    # again whatever else takes memory today.
    block_size = block_size_for(window) if config.block_size == "auto" else config.block_size
    groups = kv_groups(model, block_size, kv_dtype, window)
    chunk = config.token_budget if config.enable_chunked_prefill else window
    shares = Shares(groups, block_size=block_size, max_num_seqs=config.max_num_seqs, chunk=chunk)
    fixed, per_position = step_bytes(config, model, dtype)
    room, limit = _room(config, free, device)
    room -= model_bytes + fixed
    for_one = config.max_model_len is not None or shares.window(room, per_position) < min(window, MIN_WINDOW)
    fitting = shares.window(room, per_position, for_one=for_one)
    cache_bytes = room - min(window, fitting) * per_position
    if config.kv_cache_memory is not None:
        cache_bytes, limit = _asked(config.kv_cache_memory, free, cache_bytes)
    elif device.type == "cpu" and config.gpu_memory_utilization is None and cache_bytes > CPU_DEFAULT_MOST:
        cache_bytes, limit = CPU_DEFAULT_MOST, f"the {_gib(CPU_DEFAULT_MOST)} that a CPU's cache takes by default"
    fitting = min(fitting, shares.window(cache_bytes, for_one=for_one or shares.window(cache_bytes) < min(window, MIN_WINDOW)))
    needs = (
        f"weights take {_gib(model_bytes)}, a step {_gib(fixed)}, and {limit} leaves {_gib(max(cache_bytes, 0))} for the KV "
        f"cache, of which {_words(groups, block_size)}"
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
    n_blocks = shares.blocks(cache_bytes, min(window, fitting))
    is_enough = n_blocks == shares.blocks(1 << 60, min(window, fitting))
    why = f"{config.max_num_seqs} full windows need no more" if is_enough else f"limited by {limit}"
    if fitting < window:
        why += f"; the model's window of {window:,} tokens was cut to the {fitting:,} that fit"
    n_bytes = sum(n * group.block_bytes for n, group in zip(n_blocks, groups, strict=True))
    host_free = free_bytes(torch.device("cpu")) if device.type == "cuda" else free - model_bytes - fixed - n_bytes
    host_bytes = _host_bytes(config, max(0, host_free), device)
    sized = tuple(
        structs.replace(group, n_blocks=n, n_host_blocks=n_host)
        for group, n, n_host in zip(groups, n_blocks, shares.host_blocks(host_bytes, n_blocks), strict=True)
    )
    return KVBudget(block_size, sized, min(window, fitting), n_bytes, host_bytes, why)


def block_size_for(window: int) -> int:
    """Tokens of a block of auto size, for a window of so many tokens."""
    return next((size for longest, size in BLOCK_SIZES if window <= longest), LARGEST_BLOCK)


def _words(groups: Sequence[KVGroup], block_size: int) -> str:
    per_token = sum(group.block_bytes for group in groups if not group.recurrent) // block_size
    words = f"a token takes {per_token:,} bytes"
    states = [group.block_bytes for group in groups if group.recurrent]
    return f"{words}, a state {_gib(states[0])}" if states else words


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
