"""What this machine can do at most: memory read, float32 and 8-bit multiply-add, with one thread and with all."""

from __future__ import annotations

import mmap
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
import torch

from app.bench.others import Others, warning
from engine.errors import ConfigError
from kernels.cpu import launch
from kernels.cpu.launch import native

READ_BYTES = (1 << 20, 96 << 20, 1 << 30)
"""A core's own cache, the weights of the bundled model, and what no cache holds."""
_AHEAD = (0, 1024, 4096)
"""Bytes that a read prefetches ahead; which of them is fastest differs between machines, and the limit is the fastest."""
_ROUNDS = 1 << 19
_KIBIBYTES = 1024


@dataclass(slots=True)
class Limit:
    """One limit with so many threads: each run's rate, of which the median counts."""

    what: str
    """read, f32 or int8."""
    threads: int
    level: str = ""
    """Instruction set, of f32 and int8."""
    n_bytes: int = 0
    """Size of what is read again and again."""
    rates: list[float] = field(default_factory=list)
    """GB/s of a read, else 1e9 operations a second, a multiplication and an addition counted as two."""

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def label(self) -> str:
        if self.what == "read":
            return f"read {_size(self.n_bytes)}, GB/s"
        return f"{self.what} {self.level}, {'GFLOP/s' if self.what == 'f32' else 'GOP/s'}"


@dataclass(slots=True)
class Limits:
    """The limits of this machine at this time."""

    level: str
    """The instruction set in use: the operators' own limits are of this level."""
    all: list[Limit]
    others_cores: float = 0.0
    """Taken by other programs meanwhile."""

    def rate(self, what: str, threads: int) -> float:
        """Of the level in use; reads are of the largest size."""
        fitting = [limit for limit in self.all if limit.what == what and limit.threads == threads]
        return max((limit for limit in fitting if limit.level in ("", self.level)), key=lambda limit: limit.n_bytes).rate

    def result(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "others_cores": self.others_cores,
            "limits": [asdict(limit) | {"rate": limit.rate} for limit in self.all],
        }


def measure(
    threads: tuple[int, ...], runs: int = 5, on_run: Callable[[], None] = lambda: None, sizes: tuple[int, ...] = READ_BYTES
) -> Limits:
    """All limits with each number of threads. Each run goes through all of them once, so that none has a good minute alone.

    sizes: bytes of the reads, whole kibibytes; those that would take more than a quarter of the free memory are left out.

    Raises ConfigError where the native operators are missing.
    """
    if launch.missing is not None:
        raise ConfigError(f"The native operators cannot be used here: {launch.missing}.", launch.remedy)
    free = psutil.virtual_memory().available
    buffers = {n_bytes: buffer(n_bytes) for n_bytes in sizes if n_bytes <= free // 4}
    if not buffers:
        raise ConfigError(
            f"{_size(min(sizes))} are to be read, but {_size(free)} of memory are free, of which a quarter may be taken.",
            "Close other programs, or choose a smaller model's shapes.",
        )
    reads = [Limit("read", n, n_bytes=n_bytes) for n_bytes in buffers for n in threads]
    sums = [Limit(what, n, level) for what in ("f32", "int8") for level in native.levels() for n in threads]
    others, level = Others(), native.level()
    with restored():
        for _ in range(runs):
            for limit in sorted([*reads, *sums], key=lambda limit: limit.threads):
                use_threads(limit.threads)
                if limit.what == "read":
                    limit.rates.append(_read(buffers[limit.n_bytes]))
                else:
                    native.set_level(limit.level)
                    limit.rates.append((native.f32_rate if limit.what == "f32" else native.int8_rate)(_ROUNDS))
                    native.set_level(level)
            on_run()
    return Limits(native.level(), [*reads, *sums], others.cores())


def lines(limits: Limits) -> list[str]:
    """The limits for a person: a row for each, a column for each number of threads."""
    threads = sorted({limit.threads for limit in limits.all})
    rows: dict[str, dict[int, float]] = {}
    for limit in limits.all:
        rows.setdefault(limit.label, {})[limit.threads] = limit.rate
    out = [f"{'':26}" + "".join(f"{n:>6} thread{'s' if n > 1 else ' '}" for n in threads)]
    for label, rates in rows.items():
        out.append(f"{label:26}" + "".join(f"{rates[n]:14.1f}" for n in threads))
    most = threads[-1]
    if most > 1 and threads[0] == 1:
        gain = limits.rate("f32", most) / limits.rate("f32", 1)
        share = "are cores of their own" if gain > 0.8 * most else "share cores, or others take time from them"
        out.append(f"{most} threads compute {gain:.1f} times what one does: they {share}.")
    out.append(f"The operators use {limits.level}.")
    return out + [line for line in (warning(limits.others_cores),) if line]


def buffer(n_bytes: int) -> torch.Tensor:
    """uint8 [n_bytes] of memory that is there, in large pages where the system has them."""
    memory = mmap.mmap(-1, n_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8).fill_(1)


def use_threads(n: int) -> None:
    """Replace the pool, and wait until the system has given each of its new threads a core."""
    if native.n_threads() != n:
        native.set_threads(n)
        for _ in range(4):
            native.f32_rate(4 * _ROUNDS)


@contextmanager
def restored() -> Iterator[None]:
    """While entered, threads and level may be changed; after it they are as before."""
    n_threads, level = native.n_threads(), native.level()
    try:
        yield
    finally:
        native.set_threads(n_threads)
        native.set_level(level)


def _read(data: torch.Tensor) -> float:
    repeats = max(1, (1 << 28) // data.numel())
    return max(native.read_rate(data.data_ptr(), data.numel(), ahead, repeats) for ahead in _AHEAD)


def _size(n_bytes: int) -> str:
    mebibytes = n_bytes // _KIBIBYTES**2
    return f"{mebibytes // _KIBIBYTES} GiB" if mebibytes >= _KIBIBYTES else f"{mebibytes} MiB"
