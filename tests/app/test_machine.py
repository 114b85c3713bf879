"""Facts about the machine that runs the tests."""

from __future__ import annotations

import os
import platform

import pytest

from app.machine import SIMD, this_machine


def test_the_machine_is_described_in_plausible_numbers() -> None:
    machine = this_machine()
    assert 1 <= machine.n_cores <= machine.n_threads <= (os.cpu_count() or 1)
    assert 0 < machine.free_bytes <= machine.memory_bytes
    assert machine.processor
    assert set(machine.simd) <= set(SIMD)


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc/cpuinfo")
def test_instruction_sets_are_those_the_kernel_names() -> None:
    with open("/proc/cpuinfo") as file:
        text = file.read()
    for flag in this_machine().simd:
        assert f" {flag}" in text
