"""Open a checkpoint of either format, and fill a model's parameters from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.weights.checkpoint import Checkpoint
from kernels.ops import Weight


class Slot(Protocol):
    """A parameter that waits for its value."""

    shape: tuple[int, ...]

    def fill(self, value: Weight | Tensor) -> None:
        """Take a Weight where shape is 2-D, a float32 vector where it is 1-D; called exactly once."""
        ...


class Fillable(Protocol):
    def parameters(self) -> Mapping[str, Slot]:
        """Hugging Face name -> slot, for every parameter; a tied output matrix is not one."""
        ...
