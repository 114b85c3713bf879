"""How a model computes a step: operator by operator here, replayed in graphs.py."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.kv.storage import GroupStorage
from engine.models.decoder import Decoder
from engine.runner.inputs import StepBuffers, StepSize
from engine.types import StepInputs, StepPlan


class Step(Protocol):
    """Called in this order for each plan that it holds; what is returned stays until the next step."""

    def holds(self, plan: StepPlan) -> bool: ...

    def prepare(self, plan: StepPlan) -> StepSize:
        """Take in a plan with at least one entry, whose sequences own blocks for all their scheduled tokens."""
        ...

    def forward(self, size: StepSize) -> Tensor:
        """Hidden states of all rows after the final norm, [n_rows, h]; keys and values are in the cache afterwards."""
        ...

    def logits(self, size: StepSize) -> Tensor:
        """float32 [n_draws, vocabulary]"""
        ...


class EagerStep:
    """A Step of any size and on any operators."""

    def __init__(self, model: Decoder, kv: GroupStorage, buffers: StepBuffers) -> None:
        """buffers: of the largest usual size; larger plans get their own."""
        self._model = model
        self._kv = kv
        self._buffers = buffers
        self._inputs: list[StepInputs]
        self._hidden: Tensor

    def holds(self, plan: StepPlan) -> bool:
        return True

    def prepare(self, plan: StepPlan) -> StepSize:
        buffers = self._buffers if self._buffers.hold(plan) else self._buffers.enlarged(plan)
        size = buffers.write(plan)
        self._inputs = buffers.inputs(size)
        return size

    def forward(self, size: StepSize) -> Tensor:
        self._hidden = self._model.forward(self._inputs, self._kv)
        return self._hidden

    def logits(self, size: StepSize) -> Tensor:
        return self._model.logits(self._hidden.index_select(0, self._inputs[0].logit_rows))
