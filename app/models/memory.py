"""What memory is free for another model: less than the system says, since a KV cache takes its memory only as it fills."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import psutil
import torch

from app.models.host import ModelHost
from engine.runner import memory


def reserved_bytes(host: ModelHost, device: torch.device) -> int:
    """What a loaded model has taken or may yet take of the memory of the `device` that it runs on: weights, KV cache, and host
    memory for it where that is the same. 0 while it is not loaded."""
    info = host.info
    if info is None or host.current is None:
        return 0
    host_bytes = sum(group.n_host_blocks * group.block_bytes for group in info.kv_groups) if device.type == "cpu" else 0
    return info.weights_bytes + info.kv_bytes + host_bytes


class Memory:
    """Bytes to be had on the device that models run on."""

    def __init__(self, device: torch.device, *, free: Callable[[], int] | None = None) -> None:
        """free: what the system says can be had, in place of asking it."""
        self._device = device
        self._free = free or (lambda: memory.free_bytes(device))
        self._before = psutil.Process().memory_info().rss

    def promised_bytes(self, loaded: Iterable[ModelHost]) -> int:
        """What loaded models may yet take of the memory that the system calls free. On a GPU it is taken at once."""
        if self._device.type != "cpu":
            return 0
        taken = max(0, psutil.Process().memory_info().rss - self._before)
        return max(0, sum(reserved_bytes(host, self._device) for host in loaded) - taken)

    def free_bytes(self, loaded: Iterable[ModelHost], *, without: Iterable[ModelHost] = ()) -> int:
        """What another model may have beside those that are loaded, or once some of them are gone."""
        return self._free() - self.promised_bytes(loaded) + sum(reserved_bytes(host, self._device) for host in without)
