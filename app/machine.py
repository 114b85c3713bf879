"""Facts about this machine: processor, cores, SIMD, memory. No torch here."""

from __future__ import annotations

import ctypes
import mmap
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.runner import cores

SIMD = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "asimddp")
"""Instruction sets that the levels of kernels/cpu/isa.cpp ask for, as Linux names them."""

_READ_BYTES = 256 << 20
"""More than any cache of a desktop holds."""
_AHEAD_BYTES = 1024
"""That a read prefetches ahead; bench limits tries several."""


@dataclass(frozen=True, slots=True)
class Machine:
    system: str
    processor: str
    n_cores: int
    """Physical cores that this process may use: the default of threads that compute."""
    n_threads: int
    """Hardware threads that it may use."""
    simd: tuple[str, ...]
    memory_bytes: int
    free_bytes: int
    """Memory that could be taken without swapping."""


def this_machine() -> Machine:
    """What is known without root."""
    processor, flags = _processor()
    memory = psutil.virtual_memory()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=processor,
        n_cores=cores.physical(),
        n_threads=cores.logical(),
        simd=tuple(flag for flag in SIMD if flag in flags),
        memory_bytes=memory.total,
        free_bytes=memory.available,
    )


def read_bytes_s() -> float | None:
    """Bytes of memory that all cores together read in a second, measured in about half a second; None without the native
    operators, and where memory for it is not to be had. The most of three runs: other programs only ever take of it."""
    from kernels.cpu import launch

    if launch.missing is not None or psutil.virtual_memory().available < 8 * _READ_BYTES:
        return None
    data = mmap.mmap(-1, _READ_BYTES)
    try:
        data.write(bytes(_READ_BYTES))
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        return max(launch.native.read_rate(address, _READ_BYTES, _AHEAD_BYTES, 1) for _ in range(3)) * 1e9
    finally:
        del address
        data.close()


def _processor() -> tuple[str, set[str]]:
    """(name, instruction sets in Linux's words)."""
    system = platform.system()
    if system == "Linux":
        facts = {}
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
        flags = facts.get("flags") or facts.get("Features") or ""
        return facts.get("model name") or platform.machine(), set(flags.split())
    if system == "Darwin":
        name = _sysctl("machdep.cpu.brand_string")
        flags = set(f"{_sysctl('machdep.cpu.features')} {_sysctl('machdep.cpu.leaf7_features')}".lower().split())
        if _sysctl("hw.optional.arm.FEAT_DotProd") == "1":
            flags.add("asimddp")
        return name or platform.machine(), flags
    return platform.processor() or platform.machine(), set()


def _sysctl(name: str) -> str:
    result = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return result.stdout.strip()
