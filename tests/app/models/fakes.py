"""Engines and loaders of models that are only names and sizes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from app.models.host import ModelHost
from app.models.memory import Memory
from app.models.pool import ModelPool
from engine.errors import ConfigError


class FakeEngine:
    """Answers the questions that the host asks."""

    def __init__(self, n_bytes: int = 0) -> None:
        self.info: Any = SimpleNamespace(weights_bytes=n_bytes, kv_bytes=0, kv_groups=(), max_model_len=100)
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.close_error: Exception | None = None
        self.n_live = 0
        self.is_alive = True
        self.closed = False

    async def close(self) -> None:
        await self.may_close.wait()
        if self.close_error is not None:
            raise self.close_error
        self.closed = True


class Loads:
    """A loader that waits for `go`; `engines` are those it made."""

    def __init__(self, n_bytes: int = 0) -> None:
        self._n_bytes = n_bytes
        self.go = asyncio.Event()
        self.engines: list[FakeEngine] = []
        self.n_begun = 0
        self.error: Exception | None = None

    async def __call__(self, progress: Any) -> Any:
        self.n_begun += 1
        progress(1, 2)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        self.engines.append(FakeEngine(self._n_bytes))
        return self.engines[-1]


class Small:
    """A pool of models of these sizes, of which the machine holds `room` bytes; a model has a window of 100 tokens where it
    fits. Those of `narrow` have one of 10 where less than twice their size is free."""

    def __init__(self, room: int, sizes: dict[str, int], *, narrow: tuple[str, ...] = (), **options: Any) -> None:
        self.loads = {name: Loads(n_bytes) for name, n_bytes in sizes.items()}
        for load in self.loads.values():
            load.go.set()
        self.hosts = {name: self._host(name, n_bytes, name in narrow, options) for name, n_bytes in sizes.items()}
        main, *others = self.hosts.values()
        memory = Memory(SimpleNamespace(type="cuda"), free=lambda: room - self._taken)
        self.pool = ModelPool(main, memory=memory)
        for host in others:
            self.pool._join(host)

    def _host(self, name: str, n_bytes: int, is_narrow: bool, options: dict[str, Any]) -> ModelHost:
        def window_in(free: int) -> int:
            if free < n_bytes:
                raise ConfigError(f"{name} needs {n_bytes}, of which {free} are free.")
            return 10 if is_narrow and free < 2 * n_bytes else 100

        return ModelHost(self.loads[name], name=name, window_in=window_in, **options)

    @property
    def _taken(self) -> int:
        """An engine has its memory until it is closed."""
        engines = (engine for load in self.loads.values() for engine in load.engines)
        return sum(engine.info.weights_bytes for engine in engines if not engine.closed)

    def engine(self, name: str) -> FakeEngine:
        """The newest one of a model."""
        return self.loads[name].engines[-1]

    @property
    def loaded(self) -> set[str]:
        return {name for name, host in self.hosts.items() if host.current is not None}
