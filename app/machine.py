"""Facts about this machine: processor, cores, SIMD, memory. No torch here."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

SIMD = ("sse4_2", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
SIMD += ("neon", "asimd", "asimddp", "i8mm", "sve", "bf16")
"""Instruction sets that the operators can profit from, as Linux names them."""


@dataclass(frozen=True, slots=True)
class Machine:
    system: str
    processor: str
    n_cores: int
    """Physical cores."""
    n_threads: int
    """Hardware threads that this process may run on."""
    simd: tuple[str, ...]
    memory_bytes: int
    free_bytes: int
    """Memory that could be taken without swapping."""


def this_machine() -> Machine:
    """What is known without root."""
    processor, flags = _processor()
    memory = psutil.virtual_memory()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=processor,
        n_cores=psutil.cpu_count(logical=False) or usable,
        n_threads=usable,
        simd=tuple(flag for flag in SIMD if flag in flags),
        memory_bytes=memory.total,
        free_bytes=memory.available,
    )


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
        flags = {"asimd", "neon"} if platform.machine() == "arm64" else set(_sysctl("machdep.cpu.features").lower().split())
        if _sysctl("hw.optional.arm.FEAT_I8MM") == "1":
            flags.add("i8mm")
        if _sysctl("hw.optional.arm.FEAT_DotProd") == "1":
            flags.add("asimddp")
        return name or platform.machine(), flags
    return platform.processor() or platform.machine(), set()


def _sysctl(name: str) -> str:
    result = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return result.stdout.strip()
