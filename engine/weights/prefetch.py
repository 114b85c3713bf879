"""Have the disk read a model's files while the process does something else. Imports no torch: it runs before that."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from engine.weights.gguf.split import parts

PIECE_BYTES = 128 << 10
"""Linux reads at most a device's read-ahead for each piece of advice, of which this is the usual least."""


def read_ahead(path: Path) -> None:
    """Read a GGUF file, its model's other parts too, or the weights of a folder, into the system's cache; blocks for a while.

    Does nothing where the system does not take such advice.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else parts(path):
        with contextlib.suppress(OSError), file.open("rb") as opened:  # who opens it next says what is wrong
            for start in range(0, os.fstat(opened.fileno()).st_size, PIECE_BYTES):
                os.posix_fadvise(opened.fileno(), start, PIECE_BYTES, os.POSIX_FADV_WILLNEED)
