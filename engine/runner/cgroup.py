"""What a Linux control group leaves of memory and cores: a container is held to its own limits, however much the machine has.

Files as in the kernel's admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and scheduler/sched-bwc.rst. A group's limit holds for
all below it, so each group from the process's own up to the root counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MEMBERSHIP = Path("/proc/self/cgroup")
"""Lines hierarchy:controllers:path; of version 2 the controllers are empty."""
MOUNT = Path("/sys/fs/cgroup")


class _Files(NamedTuple):
    limit: str
    usage: str
    reclaimable: str
    """Line of memory.stat: page cache that nobody used lately, which counts as used but makes room when asked to."""


_V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Files("memory.max", "memory.current", "inactive_file")


def left_bytes() -> int | None:
    """Bytes until the tightest limit on this process; None where no limit is set or there are no control groups."""
    groups = _groups("memory")
    left = [found for folder, is_v1 in groups if (found := _left(folder, _V1 if is_v1 else _V2)) is not None]
    return max(0, min(left)) if left else None


def cores() -> float | None:
    """Cores' worth of time that the tightest quota gives this process; None where there is none."""
    quotas = [found for folder, is_v1 in _groups("cpu") if (found := _quota(folder, is_v1)) is not None]
    return min(quotas) if quotas else None


def _groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """(folder, whether it is of version 1) of the process's group and of those above it."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        is_v1 = controller in controllers.split(",")
        if controllers and not is_v1:
            continue
        mount = MOUNT / controller if is_v1 else MOUNT
        # Inside a container the name may be the host's, while only the container's own group is mounted, as the root.
        group = mount / name.lstrip("/")
        while group != mount and ".." not in group.parts:
            yield group, is_v1
            group = group.parent
        yield mount, is_v1


def _left(folder: Path, files: _Files) -> int | None:
    try:
        limit = (folder / files.limit).read_text().strip()
        if limit == "max":
            return None
        used = int((folder / files.usage).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:  # the root of version 2 has no limit, and so no files
        return None
    return int(limit) - used + int(stat.get(files.reclaimable, 0))


def _quota(folder: Path, is_v1: bool) -> float | None:
    names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_v1 else ("cpu.max",)
    try:
        quota, period = " ".join((folder / name).read_text() for name in names).split()
    except OSError:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
