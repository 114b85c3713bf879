"""Which instruction set the native operators use, and what they say of one that cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu import launch
from kernels.cpu.launch import missing, native

pytestmark = pytest.mark.skipif(missing is not None, reason=f"{missing}")

PROGRAM = """
import importlib.util as u, sys
spec = u.spec_from_file_location("_native", sys.argv[1])
native = u.module_from_spec(spec)
spec.loader.exec_module(native)
try:
    print(native.level())
except ValueError as error:
    print(error)
"""
"""Without the Python code around the module, which would be the first to complain."""


def _level(wanted: str) -> str:
    """Of the module beside the package, which needs no sanitizer's library below the program."""
    module = Path(launch.__file__).with_name(Path(native.__file__).name)
    command, variables = [sys.executable, "-c", PROGRAM, str(module)], os.environ | {"PAGEWELL_ISA": wanted}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.strip()


def test_the_environment_names_the_level() -> None:
    assert [_level(name) for name in native.levels()] == native.levels()
    assert _level("") == native.levels()[-1]


def test_a_level_that_cannot_be_had_is_refused_by_name_beside_those_that_can() -> None:
    said = _level("sse9")
    assert "PAGEWELL_ISA is sse9" in said and ", ".join(native.levels()) in said
    before = native.level()
    with pytest.raises(ValueError, match=f"sse9.*{', '.join(native.levels())}"):
        native.set_level("sse9")
    assert native.level() == before
