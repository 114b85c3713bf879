"""launch(): run a native operator at once, or record it on the tape that is being recorded.

A tape is a forward pass recorded once, with two rows, and replayed for any number: every operator reads and writes the same
memory each time. While recording, wrappers get their outputs from empty(), and nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

try:
    from kernels.cpu import _native as native
except ImportError as error:
    native = None
    _left = Path(__file__).with_name("_native_missing.txt")  # by a build that could not make the module
    _why = f"were not built: {_left.read_text('utf-8').strip()}" if _left.is_file() else f"cannot be imported: {error}"
    missing = f"the native operators {_why}"
else:
    missing = None if native.levels() else "this processor has none of the instruction sets that they are built for"
"""native: the extension module, or None. missing: why the native operators cannot be used here, or None."""

Record = Callable[[type, tuple[Any, ...]], None]
_record: Record | None = None
_allocate: Callable[..., Tensor] = torch.empty


def launch(op: type, *args: Any, n_rows: int, n_seqs: int = 0) -> None:
    """op(*args) for n_rows rows and n_seqs sequences; tensors, also in lists, stand for their addresses, None for 0."""
    if _record is not None:
        _record(op, args)
    else:
        op(*map(address, args)).run(n_rows, n_seqs)


def address(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, list):
        return [address(item) for item in value]
    return 0 if value is None else value


def empty(*shape: int) -> Tensor:
    """An output of a wrapper, float32, uninitialised."""
    return _allocate(shape, dtype=torch.float32)


class recording:
    """While entered, launch() calls record(op, args) instead of computing, and empty() calls allocate(shape, dtype=)."""

    def __init__(self, record: Record, allocate: Callable[..., Tensor]) -> None:
        self._hooks = record, allocate

    def __enter__(self) -> None:
        global _record, _allocate
        if _record is not None:
            raise RuntimeError("A tape is being recorded already.")
        _record, _allocate = self._hooks

    def __exit__(self, *_: object) -> None:
        global _record, _allocate
        _record, _allocate = None, torch.empty
