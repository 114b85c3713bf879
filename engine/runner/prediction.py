"""What a model will take on this machine, known from its configuration before anything is loaded; a load goes by it too."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner import memory
from engine.runner.memory import KVBudget
from engine.weights.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Prediction:
    """Where and in which number formats a model runs, and what that takes."""

    device: torch.device
    dtype: torch.dtype
    """Of the activations."""
    kv_dtype: torch.dtype
    weights_bytes: int
    budget: KVBudget


def predict(
    config: EngineConfig, model: ModelConfig, *, n_params: int, stored_bytes: int, free: int | None = None, promised: int = 0
) -> Prediction:
    """n_params, stored_bytes: of all tensors, as in the file. free: bytes to be had; None asks the system, of which `promised`
    ones are others'. Raises ConfigError where settings cannot be had here, or nothing of use fits into memory."""
    device = device_of(config)
    dtype = _dtype(config.dtype, torch.float32 if device.type == "cpu" else torch.bfloat16)
    kv_dtype = _dtype(config.kv_cache_dtype, _kv_default(config, device, dtype))
    weights_bytes = n_params * dtype.itemsize if config.quantization == "none" else stored_bytes
    budget = memory.fit(
        config,
        model,
        model_bytes=weights_bytes,
        free=(memory.free_bytes(device) if free is None else free) - promised,
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
    )
    return Prediction(device, dtype, kv_dtype, weights_bytes, budget)


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
