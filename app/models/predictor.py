"""Predictor: what loading a model would come to, from its headers and the free memory."""

from __future__ import annotations

import math
import threading
from pathlib import Path

from msgspec import structs

from engine.config import EngineConfig
from engine.runner.prediction import Prediction, predict
from engine.weights.config import ModelConfig
from engine.weights.loader import open_checkpoint


class Predictor:
    """Reads the headers once; any thread may ask. Every question raises ModelLoadError for a file that cannot be loaded."""

    def __init__(self, path: Path, config: EngineConfig, *, caps_window: bool = False) -> None:
        """caps_window: max_model_len is the most, and a model made for less has its own window."""
        self._path = path
        self._config = config
        self._caps_window = caps_window
        self._lock = threading.Lock()
        self._read: tuple[tuple[float, ...], ModelConfig, int, int] | None = None

    @property
    def config(self) -> EngineConfig:
        """What the model is to be loaded with."""
        model, _, _ = self._headers()
        most = self._config.max_model_len
        if self._caps_window and most is not None and most > model.max_position:
            return structs.replace(self._config, max_model_len=model.max_position)
        return self._config

    def in_memory(self, free: int | None = None) -> Prediction:
        """What it takes where `free` bytes are to be had, None: those that are. Raises ConfigError where it does not fit."""
        model, n_params, stored_bytes = self._headers()
        return predict(self.config, model, n_params=n_params, stored_bytes=stored_bytes, free=free)

    def window_in(self, free: int) -> int:
        """Window in tokens that it has where `free` bytes are to be had. Raises ConfigError where it does not fit."""
        return self.in_memory(free).budget.max_model_len

    def _headers(self) -> tuple[ModelConfig, int, int]:
        """(configuration, parameters, bytes of all tensors), read again once the files have changed."""
        files = sorted(self._path.iterdir()) if self._path.is_dir() else [self._path]
        stamp = tuple(file.stat().st_mtime for file in files if file.exists())
        with self._lock:
            if self._read is None or self._read[0] != stamp:
                checkpoint = open_checkpoint(self._path)
                n_params = sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names())
                self._read = stamp, checkpoint.config, n_params, checkpoint.n_bytes
            return self._read[1:]
