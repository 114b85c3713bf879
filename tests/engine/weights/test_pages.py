"""Pages of a mapped file come and go, and what is read from them stays the same."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.weights import pages

N_BYTES = 8 << 20


def resident_bytes(path: Path) -> int:
    """Of a file that this process has mapped, as proc(5) tells it."""
    total, within = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            within = line.endswith(str(path))
        elif within and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    np.random.default_rng(1).integers(0, 256, N_BYTES, dtype=np.uint8).tofile(path)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("shared", [False, True])
def test_pages_that_are_given_back_leave_memory_and_can_be_read_again(path: Path, shared: bool) -> None:
    mapped = torch.from_file(str(path), shared=shared, size=N_BYTES, dtype=torch.uint8)
    pages.read_ahead(mapped)
    pages.touch(mapped)
    assert resident_bytes(path) == N_BYTES
    middle = mapped[1_000_001:-1_000_001]
    pages.give_back(middle)
    assert resident_bytes(path) < 2_100_000, "only what lies wholly within leaves"
    assert mapped.numpy().tobytes() == path.read_bytes()


def test_parts_smaller_than_a_page_are_left_alone(path: Path) -> None:
    mapped = torch.from_file(str(path), shared=False, size=N_BYTES, dtype=torch.uint8)
    for part in (mapped[:0], mapped[5:6], mapped[4000:5000]):
        pages.read_ahead(part)
        pages.give_back(part)
        pages.touch(part)
    assert mapped.numpy().tobytes() == path.read_bytes()
