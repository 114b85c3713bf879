"""Predictor: what loading a model would come to, from its headers and the free memory."""

from __future__ import annotations

import threading
from pathlib import Path

from msgspec import structs

from engine.config import EngineConfig
from engine.quant import on_load
from engine.runner.prediction import Prediction, Weighed, predict, weigh
from engine.weights.loader import open_checkpoint


class Predictor:
    """Reads the headers once; any thread may ask. Every question raises ModelLoadError for a file that cannot be loaded."""

    def __init__(self, path: Path, config: EngineConfig, *, caps_window: bool = False) -> None:
        """caps_window: max_model_len is the most, and a model made for less has its own window."""
        self._path = path
        self._config = config
        self._caps_window = caps_window
        self._lock = threading.Lock()
        self._read: tuple[tuple[float, ...], Weighed] | None = None

    @property
    def config(self) -> EngineConfig:
        """What the model is to be loaded with."""
        most, longest = self._config.max_model_len, self._weighed().model.max_position
        if self._caps_window and most is not None and most > longest:
            return structs.replace(self._config, max_model_len=longest)
        return self._config

    def in_memory(self, free: int | None = None) -> Prediction:
        """What it takes where `free` bytes are to be had, None: those that are. Raises ConfigError where it does not fit."""
        return predict(self.config, self._weighed(), free=free)

    def window_in(self, free: int) -> int:
        """Window in tokens that it has where `free` bytes are to be had. Raises ConfigError where it does not fit."""
        return self.in_memory(free).budget.max_model_len

    def _weighed(self) -> Weighed:
        """Read again once the files have changed."""
        files = sorted(self._path.iterdir()) if self._path.is_dir() else [self._path]
        stamp = tuple(file.stat().st_mtime for file in files if file.exists())
        with self._lock:
            if self._read is None or self._read[0] != stamp:
                self._read = stamp, weigh(on_load.opened(open_checkpoint(self._path), self._config), self._config)
            return self._read[1]
