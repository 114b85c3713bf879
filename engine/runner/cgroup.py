"""The memory that a Linux control group leaves: a container is killed at its own limit, however much the machine has.

Files as in the kernel's admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. A group's limit holds for all below it, so
each group from the process's own up to the root counts.
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
    left = [found for folder, files in _groups() if (found := _left(folder, files)) is not None]
    return max(0, min(left)) if left else None


def _groups() -> Iterator[tuple[Path, _Files]]:
    """Folders of the process's group and of those above it."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if "memory" in controllers.split(","):
            mount, files = MOUNT / "memory", _V1
        elif not controllers:
            mount, files = MOUNT, _V2
        else:
            continue
        # Inside a container the name may be the host's, while only the container's own group is mounted, as the root.
        group = mount / name.lstrip("/")
        while group != mount and ".." not in group.parts:
            yield group, files
            group = group.parent
        yield mount, files


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
