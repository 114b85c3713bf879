"""The kernels of each instruction-set level against plain loops, in C++: on this machine, and for ARM64 under an emulator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import native_build
from kernels.cpu import launch

CROSS_COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"
"""Where Debian and Ubuntu put those that programs for ARM64 are linked with."""


def unchecked(what: str, reason: str) -> None:
    """Skip, loudly; fail where native operators are required, as in CI."""
    (pytest.fail if native_build.mode() == "required" else pytest.skip)(f"{what} NOT CHECKED: {reason}")


def mismatches(*command: str | Path) -> list[str]:
    """Lines of the program that are not about a test without mismatches."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout, ran.stderr
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return [line for line in ran.stdout.splitlines() if not line.endswith(", 0 mismatches")]


@pytest.mark.build
def test_every_level_of_this_machine_agrees_with_plain_loops() -> None:
    if launch.native is None:
        unchecked("THE KERNELS OF THIS MACHINE", launch.missing or "")
    # Where `make native` has compiled the kernels already.
    native_build.build(native_build.BUILD, targets=["kernel_tests"], PAGEWELL_TESTS=True)
    assert mismatches(native_build.BUILD / "kernel_tests", *launch.native.levels()) == []


@pytest.mark.build
def test_the_neon_kernels_agree_with_plain_loops_and_the_module_compiles_for_arm64() -> None:
    for program, package in ((CROSS_COMPILER, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user")):
        if shutil.which(program) is None:
            unchecked("NEON KERNELS", f"{program} was not found (on Debian and Ubuntu: apt install {package})")
    native_build.build(
        native_build.ROOT / "build" / "arm64",
        targets=["all", "kernel_tests"],
        PAGEWELL_TESTS=True,
        CMAKE_SYSTEM_NAME="Linux",
        CMAKE_SYSTEM_PROCESSOR="aarch64",
        CMAKE_CXX_COMPILER=CROSS_COMPILER,
        # For what is only compiled; the kernels, which are run, are optimised in any case.
        CMAKE_CXX_FLAGS_RELEASE="-O0 -DNDEBUG",
    )
    assert mismatches(EMULATOR, "-L", LIBRARIES, native_build.ROOT / "build" / "arm64" / "kernel_tests", "neon") == []
