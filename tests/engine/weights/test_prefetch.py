"""A model's files come into the system's cache before they are asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from engine.weights.prefetch import read_ahead

N_BYTES = 24 << 20


def cached_bytes(path: Path) -> int:
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def wait_for(path: Path) -> None:
    """Until the disk has read it all."""
    deadline = time.monotonic() + 20
    while cached_bytes(path) < N_BYTES:
        assert time.monotonic() < deadline, f"{cached_bytes(path)} of {N_BYTES} bytes were read"
        time.sleep(0.02)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that no cache holds."""
    if shutil.which("fincore") is None or not hasattr(os, "posix_fadvise"):
        pytest.skip("needs Linux and fincore")
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(N_BYTES))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_bytes(path):
        pytest.skip("the file system keeps its files in memory")
    return path


def test_a_whole_file_is_read(path: Path) -> None:
    read_ahead(path)
    wait_for(path)


def test_the_weights_of_a_folder_are_read(path: Path) -> None:
    read_ahead(path.parent)
    wait_for(path)


def test_what_is_not_there_is_for_others_to_say(tmp_path: Path) -> None:
    read_ahead(tmp_path / "missing.gguf")
    read_ahead(tmp_path)
