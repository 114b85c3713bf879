"""The pages of tensors that lie in a file mapped into memory: read them ahead, touch them, give them back."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

from engine.weights.prefetch import PIECE_BYTES

_WILLNEED = getattr(mmap, "MADV_WILLNEED", None)
_DONTNEED = getattr(mmap, "MADV_DONTNEED", None)
"""None on Windows, which has no madvise."""


def read_ahead(mapped: Tensor) -> None:
    """Have the disk begin to read it, where the system can."""
    raw = mapped.flatten().view(torch.uint8)
    for start in range(0, len(raw), PIECE_BYTES):
        _advise(raw[start : start + PIECE_BYTES + mmap.PAGESIZE], _WILLNEED)


def give_back(mapped: Tensor) -> None:
    """Take its whole pages out of the process, where the system can; they come back from the file when they are read again.

    Only for a tensor on a mapped file that nobody wrote to: pages of other memory would lose their contents.
    """
    _advise(mapped, _DONTNEED)


def touch(data: Tensor) -> None:
    """Read one byte of each of its pages."""
    data.flatten().view(torch.uint8)[:: mmap.PAGESIZE].sum()


def _advise(mapped: Tensor, advice: int | None) -> None:
    assert mapped.is_contiguous()
    start = -(-mapped.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    n_bytes = (mapped.data_ptr() + mapped.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
    if advice is not None and n_bytes > 0:
        # What it returns does not matter: a system may always ignore advice.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(n_bytes), advice)
