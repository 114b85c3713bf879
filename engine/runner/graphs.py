"""RecordedStep: the forward pass of a model on native operators, recorded once and replayed with one call.

Each operator of a model reads and writes the same memory at every step, and only the numbers of rows and sequences change.
So the pass is run once with two rows, without computing, to learn which operator reads and writes what; then every
intermediate result gets a place for as many rows as the largest step has, and the operators are built on those places.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.kv.storage import GroupStorage
from engine.models.decoder import Decoder
from engine.runner.arena import ALIGNMENT, Span, place
from engine.runner.inputs import StepBuffers, StepSize
from engine.types import StepPlan
from kernels.cpu import launch

_ROWS = 2
"""While recording: one row would hide that rows lie apart."""


class RecordedStep:
    """Steps of up to buffers.n_rows tokens, whose inputs lie in `buffers`; the same values as the model's own, bit for bit."""

    def __init__(self, model: Decoder, kv: GroupStorage, buffers: StepBuffers) -> None:
        """Raises Unrecordable for a model that computes with anything but native operators."""
        self._buffers = buffers
        size = StepSize(_ROWS, min(_ROWS, buffers.n_seqs), _ROWS)
        self._forward = Recording(lambda: model.forward(buffers.inputs(size), kv), buffers.n_rows)
        self._gathered = self._forward.result.new_empty(max(buffers.n_seqs, _ROWS), self._forward.result.shape[1])
        self._heads = [
            Recording(partial(model.head, hidden[:_ROWS]), buffers.n_seqs) for hidden in (self._forward.result, self._gathered)
        ]
        self._shaped = model.shaped

    def holds(self, plan: StepPlan) -> bool:
        return self._buffers.hold(plan)

    def prepare(self, plan: StepPlan) -> StepSize:
        return self._buffers.write(plan)

    def forward(self, size: StepSize) -> Tensor:
        return self._forward.replay(size.n_rows, size.n_seqs)

    @property
    def recordings(self) -> tuple[Recording, ...]:
        return self._forward, *self._heads

    def logits(self, size: StepSize) -> Tensor:
        n = size.n_draws
        if n == size.n_rows:
            return self._shaped(self._heads[0].replay(n))
        torch.index_select(self._forward.result, 0, self._buffers.logit_rows(n), out=self._gathered[:n])
        return self._shaped(self._heads[1].replay(n))


class Unrecordable(Exception):
    """What a function does cannot be replayed."""


class Recording:
    """A function of native operators, recorded; `result` is the tensor that it returns, with rows for the largest replay."""

    def __init__(self, fn: Callable[[], Tensor], most_rows: int) -> None:
        """fn: returns a result for two rows; its tensors from elsewhere keep their places. Raises Unrecordable."""
        recorder = _Recorder()
        with torch.inference_mode(), recorder, launch.recording(recorder.record, recorder.allocate):
            returned = fn()
        spans = recorder.spans(returned, most_rows)
        offsets, n_bytes = place(spans)
        self._arena = torch.empty(n_bytes + ALIGNMENT, dtype=torch.uint8)
        start = -self._arena.data_ptr() % ALIGNMENT
        addresses = [self._arena.data_ptr() + start + offset for offset in offsets]
        self._tape = launch.native.Tape()
        self._run = self._tape.run
        self._kept = [args for _, args in recorder.calls]
        self._names = [_name(op, args) for op, args in recorder.calls]
        for op, args in recorder.calls:
            self._tape.append(op(*(recorder.address(arg, addresses) for arg in args)))
        where = start + offsets[recorder.index(returned)]
        shape = (most_rows, *returned.shape[1:])
        n_values = most_rows * returned[0].numel()
        self.result = self._arena[where : where + n_values * returned.itemsize].view(returned.dtype).view(shape)

    def replay(self, n_rows: int, n_seqs: int = 0) -> Tensor:
        """[n_rows, ...]; overwritten by the next replay."""
        self._run(n_rows, n_seqs)
        return self.result[:n_rows]

    def time_operators(self) -> None:
        """From now on replays add up what each operator takes."""
        self._run = self._tape.run_timed

    @property
    def seconds(self) -> dict[str, float]:
        """Of all timed replays, by operator and format of its weights."""
        seconds: dict[str, float] = {}
        for name, of_one in zip(self._names, self._tape.seconds, strict=True):
            seconds[name] = seconds.get(name, 0.0) + of_one
        return seconds


def _name(op: type, args: tuple[Any, ...]) -> str:
    """Of the operator, with the formats of its weights."""
    flat = [item for arg in args for item in (arg if isinstance(arg, list) else [arg])]
    return " ".join([op.__name__, *sorted({arg.format for arg in flat if hasattr(arg, "format")})])


class _Recorder(TorchDispatchMode):
    """Takes down what a function launches, and raises Unrecordable for anything else that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[type, tuple[Any, ...]]] = []
        self._results: list[Tensor] = []
        self._by_storage: dict[int, int] = {}
        self._allocating = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """True would have torch import its compiler to keep it out of here, which takes a second and 130 MB."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if not (func.is_view or self._allocating):
            raise Unrecordable(f"torch computes {func}, which no native operator does")
        return func(*args, **(kwargs or {}))

    def record(self, op: type, args: tuple[Any, ...]) -> None:
        self.calls.append((op, args))

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if shape[0] != _ROWS:
            raise Unrecordable(f"a result of the shape {shape} does not have a row for each of {_ROWS}")
        self._allocating = True
        result = torch.empty(shape, dtype=dtype)
        self._allocating = False
        self._by_storage[result.untyped_storage().data_ptr()] = len(self._results)
        self._results.append(result)
        return result

    def index(self, tensor: Tensor) -> int | None:
        """Which result the tensor is, or is a part of; None for one from elsewhere."""
        return self._by_storage.get(tensor.untyped_storage().data_ptr())

    def address(self, value: Any, addresses: list[int]) -> Any:
        """As launch.address, where results are at `addresses`."""
        if isinstance(value, list):
            return [self.address(item, addresses) for item in value]
        if isinstance(value, Tensor) and (index := self.index(value)) is not None:
            offset = value.data_ptr() - self._results[index].data_ptr()
            if offset >= self._results[index][0].nbytes:
                raise Unrecordable("an operator takes rows from the middle of a result")
            return addresses[index] + offset
        return launch.address(value)

    def spans(self, returned: Tensor, most_rows: int) -> list[Span]:
        """Of every result, for most_rows rows; the returned one is needed to the end."""
        if self.index(returned) is None:
            raise Unrecordable("the result is from elsewhere")
        if returned.nbytes != self._results[self.index(returned)].nbytes:
            raise Unrecordable("the result is a part of what an operator made")
        used: list[list[int]] = [[] for _ in self._results]
        for i, (_, args) in enumerate(self.calls):
            for index in self._indices(args):
                used[index].append(i)
        used[self.index(returned)].append(len(self.calls))
        return [
            Span(most_rows * result[0].nbytes, min(calls, default=0), max(calls, default=0))
            for result, calls in zip(self._results, used, strict=True)
        ]

    def _indices(self, args: Any) -> list[int]:
        found = []
        for arg in args:
            if isinstance(arg, list):
                found += self._indices(arg)
            elif isinstance(arg, Tensor) and (index := self.index(arg)) is not None:
                found.append(index)
        return found
