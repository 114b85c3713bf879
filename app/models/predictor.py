"""Predictor: what loading a model would come to, from its headers and the free memory."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from msgspec import structs

from engine.config import EngineConfig
from engine.quant import on_load
from engine.runner.prediction import Prediction, Weighed, predict, weigh
from engine.weights.checkpoint import Checkpoint
from engine.weights.loader import open_checkpoint

log = logging.getLogger(__name__)


class Predictor:
    """Reads the headers once; any thread may ask. Every question raises ModelLoadError for a file that cannot be loaded."""

    def __init__(
        self, path: Path, config: EngineConfig, *, caps_window: bool = False, quantizes_dense_only: bool = False
    ) -> None:
        """caps_window: max_model_len is the most, and a model made for less has its own window. quantizes_dense_only: a model
        that is quantised already stays as it is, whatever quantization says; else it is refused."""
        self._path = path
        self._config = config
        self._caps_window = caps_window
        self._quantizes_dense_only = quantizes_dense_only
        self._lock = threading.Lock()
        self._read: tuple[tuple[float, ...], EngineConfig, Weighed] | None = None

    @property
    def config(self) -> EngineConfig:
        """What the model is to be loaded with."""
        return self._weighed()[0]

    def in_memory(self, free: int | None = None) -> Prediction:
        """What it takes where `free` bytes are to be had, None: those that are. Raises ConfigError where it does not fit."""
        return predict(*self._weighed(), free=free)

    def window_in(self, free: int) -> int:
        """Window in tokens that it has where `free` bytes are to be had. Raises ConfigError where it does not fit."""
        return self.in_memory(free).budget.max_model_len

    def _weighed(self) -> tuple[EngineConfig, Weighed]:
        """Read again once the files have changed."""
        files = sorted(self._path.iterdir()) if self._path.is_dir() else [self._path]
        stamp = tuple(file.stat().st_mtime for file in files if file.exists())
        with self._lock:
            if self._read is None or self._read[0] != stamp:
                checkpoint = open_checkpoint(self._path)
                config = self._fitting(checkpoint)
                self._read = stamp, config, weigh(on_load.opened(checkpoint, config), config)
            return self._read[1:]

    def _fitting(self, checkpoint: Checkpoint) -> EngineConfig:
        config = self._config
        most, longest = config.max_model_len, checkpoint.config.max_position
        if self._caps_window and most is not None and most > longest:
            config = structs.replace(config, max_model_len=longest)
        if self._quantizes_dense_only and config.quantization in on_load.SCHEMES and on_load.quantised_already(checkpoint):
            log.info("%s is quantised already and stays so: quantization %s is for dense models", self._path, config.quantization)
            config = structs.replace(config, quantization="auto")
        return config
