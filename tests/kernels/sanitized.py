"""Runs tests of the operators on a build with GCC's address and undefined-behaviour sanitizers: `make sanitize`.

Arguments are pytest's; without any, the tests of the operators run. The sanitizers' library has to be loaded before Python, so
this starts itself a second time below it, where the sanitised module takes the place of the package's own. The first report
of a sanitizer ends the run.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "build" / "sanitize"
TESTS = "tests/kernels"
OVERRUN = "--overrun"
LIBRARIES = ("libasan.so", "libubsan.so", "libstdc++.so.6")
"""The last one because a library that throws must be there when the sanitizer looks for what it intercepts."""


def main(arguments: list[str]) -> int:
    import native_build

    module = BUILD / native_build.MODULE
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        # Programs that tests start are not what is examined, and are slow enough without it.
        del os.environ["LD_PRELOAD"]
        put_in_place(module)
        if arguments == [OVERRUN]:
            return overrun()
        # Capturing the file descriptors too would swallow the report that ends the process.
        return pytest.main(["--capture=sys", "-m", "not build", *(arguments or [TESTS])])
    command = [sys.executable, "-m", "tests.kernels.sanitized"]
    native_build.build(BUILD, targets=["all", "kernel_tests"], PAGEWELL_SANITIZE=True, PAGEWELL_TESTS=True)
    variables = os.environ | environment()
    if subprocess.run([BUILD / "kernel_tests"], env=variables | {"LD_PRELOAD": ""}, check=False).returncode != 0:
        return 1
    noticed = subprocess.run([*command, OVERRUN], env=variables, capture_output=True, text=True, check=False)
    if "heap-buffer-overflow" not in noticed.stderr:
        print(f"The sanitizer did not notice an operator that reads past the end:\n{noticed.stderr}", file=sys.stderr)
        return 1
    os.execve(sys.executable, [*command, *arguments], variables)


def environment() -> dict[str, str]:
    compiler = os.environ.get("CXX", "g++")
    found = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True) for name in LIBRARIES
    ]
    return {
        "LD_PRELOAD": " ".join(path.stdout.strip() for path in found),
        # Python and torch keep memory until the process ends.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


def put_in_place(module: Path) -> None:
    """Import `module` as the package's own, before anything else does."""
    spec = importlib.util.spec_from_file_location("kernels.cpu._native", module)
    assert spec is not None and spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    sys.modules[spec.name] = native
    from kernels.cpu import launch

    assert launch.native is native


def overrun() -> int:
    """Have an operator read four values too many."""
    import torch

    from kernels.cpu import launch

    x, weight, out = torch.ones(1, 16), torch.ones(20), torch.empty(1, 20)
    launch.launch(launch.native.RMSNorm, out, x, weight, 1, 20, 20, 1e-5, n_rows=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
