"""How many threads are worth having: the cores that this process may use.

Affinity (taskset, cpusets) names the hardware threads it may run on; a control group's quota (`docker run --cpus 2`) says how
much time it gets of them, and more threads than that are stopped in turn while the others wait for them.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from engine.runner import cgroup

TOPOLOGY = Path("/sys/devices/system/cpu")


def physical() -> int:
    """Physical cores: the default of threads that compute."""
    return _within_quota(_n_physical(_allowed()))


def logical() -> int:
    """Hardware threads."""
    return _within_quota(len(_allowed()))


def _within_quota(n: int) -> int:
    quota = cgroup.cores()
    return n if quota is None else max(1, min(n, int(quota)))


def _allowed() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _n_physical(cpus: list[int]) -> int:
    """Of these hardware threads, as the pool of kernels/cpu counts them too."""
    if not hasattr(os, "sched_getaffinity"):
        return psutil.cpu_count(logical=False) or len(cpus)
    cores = {core for cpu in cpus if (core := _core(TOPOLOGY / f"cpu{cpu}" / "topology")) is not None}
    return len(cores) or len(cpus)


def _core(folder: Path) -> tuple[str, str] | None:
    """(package, core) to which a hardware thread belongs; None where the system does not tell."""
    try:
        return (folder / "physical_package_id").read_text().strip(), (folder / "core_id").read_text().strip()
    except OSError:
        return None
