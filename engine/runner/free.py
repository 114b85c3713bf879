"""Memory that can be had, by what the system, a container and the shell's limits leave."""

from __future__ import annotations

import importlib.util

import psutil
import torch

from engine.runner import cgroup


def free_bytes(device: torch.device) -> int:
    """Memory that can be had without pushing anything out; within a container, or under ulimit -v, no more than that leaves."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = (psutil.virtual_memory().available, cgroup.left_bytes(), _address_space_left())
    return min(left for left in limits if left is not None)


def _address_space_left() -> int | None:
    """None where it has no limit. Windows has none of this kind."""
    if importlib.util.find_spec("resource") is None:
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else max(0, limit - psutil.Process().memory_info().vms)
