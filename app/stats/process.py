"""The server's process and its host: processor and memory."""

from __future__ import annotations

import time

import psutil

from app.stats.frames import ProcessSection

_PERIOD_S = 1.0
_MIB = 1 << 20


class ProcessMeter:
    """Reads the operating system at most once a second."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._origin_s = time.monotonic() - (time.time() - self._process.create_time())
        self._n_cores = psutil.cpu_count() or 1
        self._read_s, self._cpu_s = time.monotonic(), time.process_time()
        self._section: ProcessSection | None = None

    def read(self) -> ProcessSection:
        now, cpu_s = time.monotonic(), time.process_time()
        span_s = now - self._read_s
        if self._section is not None and span_s < _PERIOD_S:
            return self._section
        busy = (cpu_s - self._cpu_s) / span_s if self._section is not None else 0.0
        self._read_s, self._cpu_s = now, cpu_s
        memory = psutil.virtual_memory()
        # Whole MiB: a section that trembles by a page would travel in every delta.
        self._section = ProcessSection(
            pid=self._process.pid,
            up_s=int(now - self._origin_s),
            cpu_cores=round(busy, 2),
            n_cores=self._n_cores,
            rss_bytes=self._process.memory_info().rss // _MIB * _MIB,
            host_used_bytes=(memory.total - memory.available) // _MIB * _MIB,
            host_total_bytes=memory.total,
        )
        return self._section
