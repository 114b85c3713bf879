"""How many threads compute: those of the native operators, and torch's own, which must not fight for the same cores."""

from __future__ import annotations

import logging
import weakref

import torch

from engine.runner import cores
from kernels.cpu import launch

log = logging.getLogger(__name__)

_with_torch: weakref.WeakSet[object] = weakref.WeakSet()


def use(n_threads: int | None) -> None:
    """Compute with this many threads, None: one for each physical core that this process may use.

    The threads are the process's, so another number holds for every model in it, and none of them may be computing meanwhile.
    """
    n_threads = n_threads or cores.physical()
    if n_threads > cores.logical():
        log.warning("%d threads share %d hardware threads and will wait for each other", n_threads, cores.logical())
    torch.set_num_threads(n_threads)
    if launch.missing is None and n_threads != launch.native.n_threads():
        launch.native.set_threads(n_threads)


def compute_with_torch(model: object) -> None:
    """This model needs torch's threads, for as long as it lives."""
    _with_torch.add(model)


def leave_to_native_operators() -> None:
    """A model's products run on native operators: torch's own small calls are quicker without waking other threads, and what they
    give of a token depends on no others.
    """
    if not _with_torch:
        torch.set_num_threads(1)
