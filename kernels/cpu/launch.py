"""launch(): run a native operator at once, or record it on the tape that is being recorded.

A tape is a forward pass recorded once, with two rows, and replayed for any number: every operator reads and writes the same
memory each time. While recording, wrappers get their outputs from empty(), and nothing is computed.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LEVEL_ENV = "PAGEWELL_ISA"
"""Variable that names the instruction-set level to use, instead of the highest one."""

native: Any
try:
    native = importlib.import_module("kernels.cpu._native")
except ImportError as error:
    native = None
    _absent, _import_error = isinstance(error, ModuleNotFoundError), str(error)

_level = os.environ.get(LEVEL_ENV, "")
misnamed = native is not None and _level != "" and bool(native.levels()) and _level not in native.levels()
"""Whether LEVEL_ENV keeps the native operators from being used: a mistake, not how this machine is."""


def _why_missing() -> tuple[str | None, str]:
    if native is None:
        left = Path(__file__).with_name("_native_missing.txt")  # by a build that could not make the module
        if left.is_file():
            why = f"were not built: {left.read_text('utf-8').strip()}"
        else:
            why = "were not built" if _absent else f"cannot be imported: {_import_error}"
        is_checkout = (Path(__file__).parents[2] / "native_build.py").is_file()
        return f"the native operators {why}", (
            "Install a C++20 compiler and Python's headers (Debian and Ubuntu: apt install g++ python3-dev), then "
            + ("run make native." if is_checkout else "install Pagewell again, with --force-reinstall --no-cache-dir.")
        )
    if not native.levels():
        return "this processor has none of the instruction sets that they are built for", (
            "They need AVX2, FMA and F16C of an x86-64 processor, or the dot products of an ARM64 one."
        )
    if misnamed:
        return f"{LEVEL_ENV} is {_level!r}, which is no instruction-set level that this machine and this build have", (
            f"Set it to one of {', '.join(native.levels())}, or unset it."
        )
    return None, ""


missing, remedy = _why_missing()
"""Why the native operators cannot be used here, or None; and what helps. `native` is the extension module, or None."""

Record = Callable[[type, tuple[Any, ...]], None]


class _Hooks(threading.local):
    """What launch() and empty() do: each thread's own, for beside one that records others compute."""

    record: Record | None = None
    allocate: Callable[..., Tensor] = staticmethod(torch.empty)


_hooks = _Hooks()


def launch(op: type, *args: Any, n_rows: int, n_seqs: int = 0) -> None:
    """op(*args) for n_rows rows and n_seqs sequences; tensors, also in lists, stand for their addresses, None for 0."""
    if _hooks.record is not None:
        _hooks.record(op, args)
    else:
        op(*map(address, args)).run(n_rows, n_seqs)


def address(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.data_ptr()
    if isinstance(value, list):
        return [address(item) for item in value]
    return 0 if value is None else value


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """An output of a wrapper, uninitialised."""
    return _hooks.allocate(shape, dtype=dtype)


class recording:
    """While entered, launch() of this thread calls record(op, args) and no operator; empty() calls allocate(shape, dtype=)."""

    def __init__(self, record: Record, allocate: Callable[..., Tensor]) -> None:
        self._record, self._allocate = record, allocate

    def __enter__(self) -> None:
        if _hooks.record is not None:
            raise RuntimeError("A tape is being recorded already.")
        _hooks.record, _hooks.allocate = self._record, self._allocate

    def __exit__(self, *_: object) -> None:
        del _hooks.record, _hooks.allocate
