"""How many KV blocks fit into memory beside the weights, and how long a window they allow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from msgspec import structs

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kv.groups import KVGroup
from engine.kv.storage import token_bytes
from engine.runner import needs
from engine.runner.free import free_bytes
from engine.runner.needs import Needs
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
USEFUL_WINDOW = 1024
"""Tokens below which a conversation is hardly possible: fewer answers at once are better than a shorter window."""
LAST_SHARE = 0.9
"""Of a CPU's free memory, for a model that would not fit otherwise."""
LEAST_BUDGET = 16
"""Tokens of a step: max_num_batched_tokens is not lowered further."""
DEFAULT_SEQS = EngineConfig().max_num_seqs
REMEDY = (
    "Close other programs, choose a smaller model or a stronger quantisation, lower --max-num-seqs if you set it, or raise "
    "--gpu-memory-utilization."
)

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
    max_num_seqs: int
    max_num_batched_tokens: int
    """Limits of a step in force: the settings', or what memory was enough for."""
    needs: Needs
    """What the model takes at most, part by part."""
    why: str
    """For the person: what limited the cache and the window."""
    is_short: bool = False
    """Whether more than cache and window gave way."""


def kv_groups(model: ModelConfig, block_size: int, kv_dtype: torch.dtype, window: int) -> list[KVGroup]:
    """Layers whose memory is of one kind, as yet without blocks: those of all tokens first, then by window, then states.

    A layer whose own window is not below the model's needs all tokens. One that reads the keys and values of another is in none.
    """
    recurrent = model.recurrent
    states = recurrent.layers if recurrent is not None else ()
    by_window: dict[int, list[int]] = {}
    for i in (i for i in range(model.n_layers) if i not in states and model.kv_source(i) == i):
        by_window.setdefault(model.windows[i] if model.windows[i] < window else 0, []).append(i)

    def block_bytes(layers: Sequence[int]) -> int:
        return block_size * sum(token_bytes(model.kv_shape(i), kv_dtype) for i in layers)

    groups = [
        KVGroup(n_blocks=0, layers=tuple(layers), window=of_group, block_bytes=block_bytes(layers))
        for of_group, layers in sorted(by_window.items())
    ]
    if states:
        state_bytes = sum(math.prod(shape) for shape in recurrent.state_shapes) * torch.float32.itemsize
        groups.append(KVGroup(n_blocks=0, layers=states, recurrent=True, block_bytes=len(states) * state_bytes))
    return groups


@dataclass(frozen=True, slots=True)
class _Try:
    """A way to fit: with these limits of a step, in this part of free memory (None: as the settings have it)."""

    config: EngineConfig
    share: float | None = None


def _tries(config: EngineConfig, device: torch.device) -> Iterator[_Try]:
    """The settings as they are, then with less and less in a step, at last in more of free memory than is taken by default.

    Only what was left at its default is lowered: max_num_seqs of the default's number counts as that.
    """
    yield _Try(config)
    n_seqs, n_tokens = config.max_num_seqs, config.token_budget
    lowers_seqs, lowers_tokens = n_seqs == DEFAULT_SEQS, config.max_num_batched_tokens is None
    least = config
    for halvings in range(1, n_tokens.bit_length()):
        n = max(1, n_seqs >> halvings) if lowers_seqs else n_seqs
        tokens = max(n, LEAST_BUDGET, n_tokens >> halvings) if lowers_tokens else n_tokens
        lowered = structs.replace(config, max_num_seqs=n, max_num_batched_tokens=tokens)
        if (n, tokens) == (least.max_num_seqs, least.token_budget):
            break
        least = lowered
        yield _Try(least)
    if device.type == "cpu" and config.gpu_memory_utilization is None and config.kv_cache_memory is None:
        yield _Try(least, LAST_SHARE)


def fit(
    config: EngineConfig,
    model: ModelConfig,
    *,
    model_bytes: int,
    free: int,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    packing_bytes: int = 0,
) -> KVBudget:
    """Whether and how a model fits whose weights take model_bytes, where `free` bytes are to be had before anything of it loads.

    packing_bytes: of the largest matrix as stored, which is in memory twice while it is packed.

    The cache is never larger than max_num_seqs full windows need. When memory is short, the cache shrinks first, then the
    model's own window down to USEFUL_WINDOW, then max_num_seqs and max_num_batched_tokens, then the window to what is left. What
    the person asked for does not shrink. Raises ConfigError with the numbers when that, or 16 tokens, do not fit.
    """
    window = _window(config, model)
    useful = window if config.max_model_len is not None else min(window, USEFUL_WINDOW)
    best, refused = None, None
    for attempt in _tries(config, device):
        try:
            budget = _fitted(
                attempt,
                model,
                window,
                model_bytes,
                free=free,
                device=device,
                dtype=dtype,
                kv_dtype=kv_dtype,
                packing=packing_bytes,
            )
        except ConfigError as error:
            refused = error
            continue
        if best is None or budget.max_model_len > best.max_model_len:
            best = _told(budget, config, attempt)
        if budget.max_model_len >= useful:
            break
    if best is None:
        raise refused
    return best


def _told(budget: KVBudget, config: EngineConfig, attempt: _Try) -> KVBudget:
    """With what was given up for it, in words."""
    lowered = [
        f"{name} was lowered from {before} to {after}"
        for name, before, after in (
            ("max_num_seqs", config.max_num_seqs, budget.max_num_seqs),
            ("max_num_batched_tokens", config.token_budget, budget.max_num_batched_tokens),
        )
        if after < before
    ]
    if attempt.share is not None:
        lowered.append(f"it takes {attempt.share:.0%} of free memory instead of {CPU_SHARE:.0%}")
    return replace(budget, is_short=bool(lowered), why="; ".join([budget.why, *lowered]))


def _fitted(
    attempt: _Try,
    model: ModelConfig,
    window: int,
    model_bytes: int,
    *,
    free: int,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    packing: int,
) -> KVBudget:
    """Blocks and window with these limits of a step. Raises ConfigError."""
    config = attempt.config
    # By what the model or the person asks for and not by what fits: a prefix on disk, or from another process, has to be found
    # again whatever else takes memory today.
    block_size = block_size_for(window) if config.block_size == "auto" else config.block_size
    groups = kv_groups(model, block_size, kv_dtype, window)
    chunk = config.token_budget if config.enable_chunked_prefill else window
    shares = Shares(groups, block_size=block_size, max_num_seqs=config.max_num_seqs, chunk=chunk)
    native = needs.computes_natively(model, device, dtype)
    if not native and (device.type != "cpu" or config.quantization == "auto"):
        packing = 0  # plain torch takes weights as they are in the mapped file
    fixed = needs.step_bytes(config, model, dtype, native=native)
    per_position = needs.position_bytes(config, model, dtype, block_size=block_size, n_groups=len(groups), native=native)
    text = needs.text_bytes(model)
    on_device = model_bytes + (text if device.type == "cpu" else 0)
    room, limit = _room(config, free, device, attempt.share)
    if on_device + packing > room:
        raise ConfigError(
            f"The model does not fit into memory: weights take {_gib(model_bytes)} and {_gib(packing)} more while they load, the "
            f"tokenizer {_gib(text)}, of {limit}.",
            REMEDY,
        )
    room -= on_device + fixed
    for_one = config.max_model_len is not None or shares.window(room, per_position) < min(window, MIN_WINDOW)
    fitting = shares.window(room, per_position, for_one=for_one)
    cache_bytes = room - min(window, fitting) * per_position
    if config.kv_cache_memory is not None:
        cache_bytes, limit = _asked(config.kv_cache_memory, free, cache_bytes)
    elif device.type == "cpu" and config.gpu_memory_utilization is None and cache_bytes > CPU_DEFAULT_MOST:
        cache_bytes, limit = CPU_DEFAULT_MOST, f"the {_gib(CPU_DEFAULT_MOST)} that a CPU's cache takes by default"
    fitting = min(fitting, shares.window(cache_bytes, for_one=for_one or shares.window(cache_bytes) < min(window, MIN_WINDOW)))
    takes = (
        f"weights take {_gib(model_bytes)}, the tokenizer {_gib(text)}, a step of {config.token_budget} tokens and "
        f"{config.max_num_seqs} answers {_gib(fixed)}, and {limit} leaves {_gib(max(cache_bytes, 0))} for the KV cache, of which "
        f"{_words(groups, block_size)}"
    )
    if fitting < min(window, MIN_WINDOW):
        raise ConfigError(f"Not even {MIN_WINDOW} tokens of KV cache fit into memory: {takes}.", REMEDY)
    if fitting < window and config.max_model_len is not None:
        raise ConfigError(
            f"A window of {window:,} tokens does not fit into memory, {fitting:,} would: {takes}.",
            f"Set --max-model-len to at most {fitting}, a narrower --kv-cache-dtype, or raise --gpu-memory-utilization.",
        )
    fitting = min(window, fitting)
    n_blocks = shares.blocks(cache_bytes, fitting)
    is_enough = n_blocks == shares.blocks(1 << 60, fitting)
    why = f"{config.max_num_seqs} full windows need no more" if is_enough else f"limited by {limit}"
    if fitting < window:
        why += f"; the model's window of {window:,} tokens was cut to the {fitting:,} that fit"
    n_bytes = sum(n * group.block_bytes for n, group in zip(n_blocks, groups, strict=True))
    step = fixed + fitting * per_position
    host_free = free_bytes(torch.device("cpu")) - text if device.type == "cuda" else free - on_device - step - n_bytes
    host_bytes = _host_bytes(config, max(0, host_free), device)
    sized = tuple(
        structs.replace(group, n_blocks=n, n_host_blocks=n_host)
        for group, n, n_host in zip(groups, n_blocks, shares.host_blocks(host_bytes, n_blocks), strict=True)
    )
    host = sum(group.n_host_blocks * group.block_bytes for group in sized)
    return KVBudget(
        block_size=block_size,
        groups=sized,
        max_model_len=fitting,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.token_budget,
        n_bytes=n_bytes,
        host_bytes=host_bytes,
        needs=Needs(weights=model_bytes, packing=packing, text=text, step=step, kv=n_bytes, host=host),
        why=why,
    )


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


def _room(config: EngineConfig, free: int, device: torch.device, share: float | None) -> tuple[int, str]:
    """Bytes for weights, activations and cache together, and what that is in words."""
    if config.kv_cache_memory is not None:
        return free, f"{_gib(free)} of free memory"
    share = share or config.gpu_memory_utilization or (CPU_SHARE if device.type == "cpu" else GPU_SHARE)
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
