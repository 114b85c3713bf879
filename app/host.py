"""ModelHost: the one model that this process serves, loaded beside the running server, unloaded when nobody asks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import structs

from app import paths
from app.errors import ModelFailed, ModelLoading
from app.settings import Settings
from engine.async_engine import AsyncEngine, ModelInfo
from engine.errors import EngineDead, PagewellError

log = logging.getLogger(__name__)

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all); called from any thread."""
Loader = Callable[[Progress], Awaitable[AsyncEngine]]
State = Literal["loading", "ready", "unloaded", "failed"]

_WATCH_S = 1.0
_RETRY_S = 2.0
"""How long a model that ran before rests after a failed load; twice as long after each further failure."""
_MAX_RETRY_S = 60.0


class _LoadStopped(Exception):
    """Ends a load from within, since the server is stopping."""


class ModelHost:
    """Owns the engine: loads it in the background, gives it to whoever asks, unloads it after a time of silence."""

    def __init__(self, load: Loader, *, name: str, idle_timeout_s: float = 0.0) -> None:
        self.name = name
        """The id under which clients know the model."""
        self.state: State = "loading"
        self.progress = 0.0
        self.error: PagewellError | None = None
        self.info: ModelInfo | None = None
        """Facts of the model; they stay after an unload."""
        self.on_ready: list[Callable[[AsyncEngine], None]] = []
        """Called on the event loop with each engine that becomes ready."""
        self.on_unload: list[Callable[[AsyncEngine], None]] = []
        """Called on the event loop with each engine that leaves; who goes on to hold it keeps the model in memory."""
        self.on_failed: list[Callable[[PagewellError], None]] = []
        """Called on the event loop when a load fails."""
        self.created = int(time.time())
        self._load = load
        self._idle_timeout_s = idle_timeout_s
        self._engine: AsyncEngine | None = None
        self._loading: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._on_demand = False
        """Whether the load under way answers a request, which then waits for it."""
        self._load_began = 0.0
        self._last_used = 0.0
        self._memory = asyncio.Lock()
        """Held while an engine comes into memory or leaves it: there is never room for two."""
        self._stopping = False
        """No load may begin, and one under way ends at its next tensor."""
        self._n_failures = 0
        self._retry_at = math.inf

    @classmethod
    def from_settings(cls, settings: Settings, path: Path) -> ModelHost:
        """A host for the model at `path`, a GGUF file or a folder."""

        folder = settings.engine.kv_disk_folder or str(paths.cache_dir() / "kv")
        weights = settings.engine.weights_disk_folder or str(paths.cache_dir() / "weights")
        config = structs.replace(settings.engine, kv_disk_folder=folder, weights_disk_folder=weights)

        async def load(progress: Progress) -> AsyncEngine:
            return await AsyncEngine.load(path, config, progress)

        name = settings.serving.served_model_name or path.stem
        return cls(load, name=name, idle_timeout_s=settings.orchestrator.idle_timeout)

    @property
    def engine(self) -> AsyncEngine:
        """The engine, ready for requests. Raises ModelLoading (a load begins if the model was unloaded), ModelFailed, or
        EngineDead when the server is stopping."""
        self._last_used = time.monotonic()
        if self.state == "unloaded":
            self._begin(on_demand=True)
        if self.state == "failed":
            assert self.error is not None
            raise ModelFailed(f"The model {self.name} could not be loaded: {self.error.message}", self.error.hint)
        if self._engine is None:
            raise ModelLoading(f"The model {self.name} is loading ({self.progress:.0%}).", self.retry_after_s)
        return self._engine

    @property
    def is_asleep(self) -> bool:
        """Whether `acquire` would wait for a load that answers a request."""
        return self.state == "unloaded" or (self.state == "loading" and self._on_demand)

    @property
    def current(self) -> AsyncEngine | None:
        """The engine if there is one now. Looking does not count as use, so observers neither load nor keep a model."""
        return self._engine

    @property
    def retry_after_s(self) -> int:
        """Whole seconds until the model is probably there, from the pace so far."""
        if self.progress <= 0.01:
            return 5
        elapsed = time.monotonic() - self._load_began
        return max(1, min(60, math.ceil(elapsed * (1 - self.progress) / self.progress)))

    async def acquire(self) -> AsyncEngine:
        """The engine; a model that was unloaded for silence is loaded first, and the caller waits for it."""
        while self.is_asleep:  # again if silence unloaded it before this caller had its turn
            if self.state == "unloaded":
                self._begin(on_demand=True)
            assert self._loading is not None
            await asyncio.shield(self._loading)
        return self.engine

    async def start(self) -> None:
        """Begin to load; returns at once."""
        self._begin()
        self._watching = asyncio.create_task(self._watch(), name="model-watch")

    async def unload(self) -> None:
        """Free the model's memory; the next request loads it again. Live requests end with an error."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        self.state = "unloaded"
        self.progress = 0.0
        async with self._memory:
            _tell(self.on_unload, engine)
            try:
                await engine.close()
            except Exception:
                log.exception("The engine of %s did not close in order", self.name)
            else:
                log.info("Unloaded %s", self.name)
            # An engine and its events refer to each other, and `serve` has frozen them: only this takes the model out of memory.
            del engine
            gc.unfreeze()
            gc.collect()

    async def drain(self, grace_s: float) -> None:
        """The server is stopping: answers may go on for `grace_s`, then those that have not ended end with an error.
        A load under way ends, and none begins."""
        self._stopping = True
        deadline = time.monotonic() + grace_s
        while self._engine is not None and self._engine.n_live and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        await self.unload()

    async def close(self) -> None:
        """End loading and the engine, for good."""
        self._stopping = True
        for task in (self._watching, self._loading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self.unload()
        async with self._memory:  # an unload that began elsewhere
            pass

    def _begin(self, *, on_demand: bool = False) -> None:
        if self._stopping:
            raise EngineDead("The server is stopping.", "Come back when it runs again.")
        self._on_demand = on_demand
        self.state = "loading"
        self.progress = 0.0
        self.error = None
        self._load_began = time.monotonic()
        self._loading = asyncio.create_task(self._run_load(), name="model-load")

    async def _run_load(self) -> None:
        async with self._memory:
            self._load_began = time.monotonic()
            try:
                engine = await self._load(self._note_progress)
            except _LoadStopped:
                self.state = "unloaded"
            except PagewellError as error:
                self._fail(error)
            except Exception as error:
                log.exception("Loading %s failed", self.name)
                self._fail(PagewellError(f"{type(error).__name__}: {error}"))
            else:
                self._engine = engine
                self.info = engine.info
                self.progress = 1.0
                self.state = "ready"
                self._n_failures = 0
                log.info("Loaded %s in %.1f s", self.name, time.monotonic() - self._load_began)
                _tell(self.on_ready, engine)
                self._last_used = time.monotonic()  # silence begins when it could have been asked

    def _fail(self, error: PagewellError) -> None:
        # Its tracebacks hold the load's variables, half a model among them.
        self.error = error.with_traceback(None)
        error.__cause__ = error.__context__ = None
        self.state = "failed"
        if self.info is not None:  # it ran before, so the reason may pass: a full memory, a disk that was away
            self._retry_at = time.monotonic() + min(_MAX_RETRY_S, _RETRY_S * 2**self._n_failures)
            self._n_failures += 1
        if self.info is not None or not self.on_failed:  # who listens for the first load tells the person
            log.error("The model %s could not be loaded: %s", self.name, error)
        _tell(self.on_failed, error)

    def _note_progress(self, done: int, total: int) -> None:
        if self._stopping:
            raise _LoadStopped
        if total > 0:
            self.progress = min(1.0, done / total)

    async def _watch(self) -> None:
        while not self._stopping:
            await asyncio.sleep(_WATCH_S)
            try:
                await self._look()
            except Exception:
                log.exception("Watching over %s failed", self.name)

    async def _look(self) -> None:
        """Unload after silence, load a new engine when the old one has died, end the rest after a failed load."""
        # No variable here may hold the engine while it is unloaded.
        if self._engine is None:
            if self.state == "failed" and time.monotonic() >= self._retry_at:
                self.state = "unloaded"  # the next request tries again
                self._retry_at = math.inf
        elif not self._engine.is_alive:
            log.error("The engine of %s has died; loading the model again", self.name)
            await self.unload()
            if self.state == "unloaded" and not self._stopping:  # no request has begun to load it meanwhile
                self._begin()
        elif self._engine.n_live:
            self._last_used = time.monotonic()
        elif self._idle_timeout_s and time.monotonic() - self._last_used > self._idle_timeout_s:
            await self.unload()


def _tell(callbacks: list[Callable[[T], None]], value: T) -> None:
    for callback in callbacks:
        try:
            callback(value)
        except Exception:
            log.exception("A callback of the model's host failed")
