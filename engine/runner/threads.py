"""How many threads compute: those of the native operators, and torch's own, which must not fight for the same cores."""

from __future__ import annotations

import torch

from kernels.cpu import launch

_TORCH_DEFAULT = torch.get_num_threads()
"""What torch found at its start: the physical cores, or OMP_NUM_THREADS."""


def use(n_threads: int | None) -> None:
    """Compute with this many threads, None: one for each physical core. Nothing may be computing."""
    torch.set_num_threads(n_threads or _TORCH_DEFAULT)
    if launch.missing is None:
        n_threads = n_threads or launch.native.physical_cores()
        if n_threads != launch.native.n_threads():
            launch.native.set_threads(n_threads)


def leave_to_native_operators() -> None:
    """A model runs on native operators alone: torch's own small calls are quicker without waking other threads."""
    torch.set_num_threads(1)
