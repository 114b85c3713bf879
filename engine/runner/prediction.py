"""What a model will take on this machine, known from its configuration before anything is loaded; a load goes by it too."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.latent import widened_bytes
from engine.quant import on_load
from engine.runner import memory
from engine.runner.memory import KVBudget
from engine.runner.needs import text_bytes
from engine.weights.checkpoint import Checkpoint
from engine.weights.config import ModelConfig
from engine.weights.packed import making_bytes, packed_bytes


@dataclass(frozen=True, slots=True)
class Prediction:
    """Where and in which number formats a model runs, and what that takes."""

    device: torch.device
    dtype: torch.dtype
    """Of the activations."""
    kv_dtype: torch.dtype
    weights_bytes: int
    budget: KVBudget


@dataclass(frozen=True, slots=True)
class Weighed:
    """A checkpoint's configuration and what its weights take."""

    model: ModelConfig
    n_params: int
    held_bytes: int
    """Once operators hold them."""
    making_bytes: int = 0
    """Beside what becomes of a matrix while it is made, at most."""


def weigh(checkpoint: Checkpoint, config: EngineConfig) -> Weighed:
    """checkpoint: as config.quantization wants it (on_load.opened). Reads shapes only. Raises ConfigError for a GPU that is not
    there.
    """
    device, names = device_of(config), checkpoint.names()
    n_params = sum(math.prod(checkpoint.shape(name)) for name in names)
    if config.quantization == "none":
        held = on_load.weights_bytes(checkpoint, "none", _activations(config, device))
    else:
        of_file = packed_bytes(checkpoint) if device.type == "cpu" else on_load.weights_bytes(checkpoint, "auto", torch.float32)
        held = of_file + widened_bytes(checkpoint) + _kept_dense(checkpoint, _activations(config, device))
    return Weighed(checkpoint.config, n_params, held, max((making_bytes(checkpoint, name) for name in names), default=0))


def _kept_dense(checkpoint: Checkpoint, dtype: torch.dtype) -> int:
    """What matrices that are transformers' own take in the type of activations, beyond what the file has."""
    files = checkpoint.config.borrowed_files
    if files is None:
        return 0
    theirs = [name for name in checkpoint.names() if name not in files.matrices]
    matrices = [name for name in theirs if len(checkpoint.shape(name)) == 2]
    # An embedding that is transformers' own, and the output's matrix as our product has it, are two.
    has_two = checkpoint.config.tie_embeddings and files.embedding in theirs and files.head in files.matrices
    return (checkpoint.weight_bytes(files.embedding) if has_two else 0) + sum(
        math.prod(checkpoint.shape(name)) * dtype.itemsize - checkpoint.weight_bytes(name)
        for name in matrices
        if name != files.head or not checkpoint.config.tie_embeddings
    )


def predict(
    config: EngineConfig, weighed: Weighed, *, free: int | None = None, promised: int = 0, has_text: bool = False
) -> Prediction:
    """free: bytes to be had; None asks the system, of which `promised` ones are others'. has_text: the tokenizer is there
    already, in what is no longer free. Raises ConfigError where settings cannot be had here, or nothing of use fits into memory.
    """
    device = device_of(config)
    dtype = _activations(config, device)
    kv_dtype = _dtype(config.kv_cache_dtype, _kv_default(config, device, dtype))
    free = (memory.free_bytes(device) if free is None else free) - promised
    budget = memory.fit(
        config,
        weighed.model,
        model_bytes=weighed.held_bytes,
        free=free + (text_bytes(weighed.model) if has_text and device.type == "cpu" else 0),
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        packing_bytes=weighed.making_bytes,
    )
    return Prediction(device, dtype, kv_dtype, weighed.held_bytes, budget)


def _activations(config: EngineConfig, device: torch.device) -> torch.dtype:
    return _dtype(config.dtype, torch.float32 if device.type == "cpu" else torch.bfloat16)


def device_of(config: EngineConfig) -> torch.device:
    """Where the model runs. Raises ConfigError for a GPU that is not there."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch sees no CUDA device here.", "Set --device cpu, or leave it out.")
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def _kv_default(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """Attention of many or long answers takes as long as reading the cache does, and float16 halves it; its ten bits are more
    than activations keep in the products. Exact runs keep all."""
    narrow = device.type == "cpu" and dtype == torch.float32 and config.kernel_precision == "fast"
    return torch.float16 if narrow else dtype


def _dtype(name: str, default: torch.dtype) -> torch.dtype:
    return {"auto": default, "fp8_e4m3": torch.float8_e4m3fn}.get(name) or getattr(torch, name)
