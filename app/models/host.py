"""ModelHost: one model that this process may serve, loaded beside the running server, unloaded when nobody asks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Literal, TypeVar

import torch

from app.catalog.disk import LocalModel
from app.errors import ModelFailed, ModelInUse, ModelLoading, UnknownModel
from app.signal import Signal
from engine.async_engine import AsyncEngine, ModelInfo
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineDead, ModelLoadError, PagewellError, QueueFull
from engine.loading import give_back_freed_memory

log = logging.getLogger(__name__)

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all); called from any thread."""
Loader = Callable[[Progress], Awaitable[AsyncEngine]]
State = Literal["unloaded", "waiting", "loading", "ready", "failed"]
"""waiting: its load has been asked for, and begins once answers of other models have ended and left the memory."""

_WATCH_S = 1.0
_RETRY_S = 2.0
"""How long a model rests after a failed load; twice as long after each further failure."""
_MAX_RETRY_S = 60.0
_LOOK_AGAIN_S = 0.5


class NobodyWaits(Exception):
    """Ends a load that waits for room, since all who asked for it have left."""


class _LoadStopped(Exception):
    """Ends a load from within, since the server is stopping."""


class ModelHost:
    """Owns a model's engine: loads it in the background, lends it to whoever asks, unloads it after a time of silence."""

    def __init__(
        self,
        load: Loader,
        *,
        name: str,
        model: LocalModel | None = None,
        config: EngineConfig | None = None,
        idle_timeout_s: float = 0.0,
        max_waiting: int = 1024,
        window_in: Callable[[int], int] | None = None,
    ) -> None:
        """model: where it lies. config: what it is loaded with. window_in: the window in tokens that it would have where so
        many bytes are free; blocks, and raises PagewellError where it cannot run at all. None: it fits anywhere."""
        self.name = name
        """The id under which clients know the model."""
        self.model = model
        self.config = config
        self.window_in = window_in
        self.state: State = "loading"
        self.progress = 0.0
        self.error: PagewellError | None = None
        """Why the last load failed."""
        self.waits_for: tuple[str, ...] = ()
        """Models that have to leave before this one comes, while it waits."""
        self.info: ModelInfo | None = None
        """Facts of the model; they stay after an unload."""
        self.capabilities: tuple[str, ...] = ("completion",)
        """What the model can do, once it was loaded: chat, insert."""
        self.on_ready: list[Callable[[AsyncEngine], None]] = []
        """Called on the event loop with each engine that becomes ready."""
        self.on_unload: list[Callable[[AsyncEngine], None]] = []
        """Called on the event loop with each engine that leaves; who goes on to hold it keeps the model in memory."""
        self.on_failed: list[Callable[[PagewellError], None]] = []
        """Called on the event loop when a load fails."""
        self.turn: Callable[[ModelHost], AbstractAsyncContextManager[None]] = lambda _: nullcontext()
        """Entered for each load, and left at its end: whoever owns several hosts makes room and lets one load at a time."""
        self.created = int(time.time())
        self.ready_s = 0.0
        """time.monotonic() of the end of the last load."""
        self._load = load
        self._idle_timeout_s = idle_timeout_s
        self._max_waiting = max_waiting
        self._engine: AsyncEngine | None = None
        self._loading: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._on_demand = False
        """Whether the load under way answers a request, which then waits for it."""
        self._wanted = False
        """Whether it is to be loaded even if everybody who waits for it leaves."""
        self._load_began = 0.0
        self._last_used_s = 0.0
        self._n_waiting = 0
        self._n_held = 0
        """Users who have the engine, and may not have queued their request yet."""
        self._leaves_s: float | None = None
        """From when on nobody new gets the engine, since another model needs its room."""
        self._changed = Signal()
        self._memory = asyncio.Lock()
        """Held while the engine comes into memory or leaves it."""
        self._stopping = False
        """No load may begin, and one under way ends at its next tensor."""
        self._kept_out = False
        """No load may begin, since its files are being deleted."""
        self._n_failures = 0
        self._retry_at = math.inf
        self._may_pass = False
        """Whether the reason of the last failure may pass without anybody's doing, so that clients should ask again."""

    @property
    def own_settings(self) -> dict[str, Any]:
        """What it is loaded with, where that is not the default; memory and disk sizes in bytes."""
        if self.config is None:
            return {}
        default = EngineConfig()
        fields = {name: getattr(self.config, name) for name in EngineConfig.__struct_fields__}
        hidden = ("kv_disk_folder", "weights_disk_folder")
        return {name: value for name, value in fields.items() if value != getattr(default, name) and name not in hidden}

    @property
    def would_wait(self) -> bool:
        """Whether `use` would wait for a load that answers a request, or for other models."""
        loads = self.state in ("waiting", "loading") and self._on_demand
        return self.state == "unloaded" or loads or self._is_closing or (self.state == "failed" and self.may_retry)

    @property
    def current(self) -> AsyncEngine | None:
        """The engine if there is one now. Looking does not count as use, so observers neither load nor keep a model."""
        return self._engine

    @property
    def is_busy(self) -> bool:
        """Whether somebody has an answer running, or is about to: who waited for the load and has not had its turn too."""
        if self._engine is None:
            return False
        return bool(self._engine.n_live or self._n_held or (self._n_waiting and not self._is_closing))

    @property
    def last_used_s(self) -> float:
        """time.monotonic() of the last use; now, while there is one."""
        return time.monotonic() if self.is_busy else self._last_used_s

    @property
    def is_wanted(self) -> bool:
        """Whether a load that has not begun yet is still worth it."""
        return not self._stopping and (self._wanted or self._n_waiting > 0 or not self._on_demand)

    @property
    def n_waiting(self) -> int:
        """Who waits for the engine."""
        return self._n_waiting

    @property
    def may_retry(self) -> bool:
        """Whether the next request tries to load a model whose load has failed."""
        return time.monotonic() >= self._retry_at

    @property
    def retry_after_s(self) -> int:
        """Whole seconds until the model is probably there, from the pace so far."""
        if self.progress <= 0.01:
            return 5
        elapsed = time.monotonic() - self._load_began
        return max(1, min(60, math.ceil(elapsed * (1 - self.progress) / self.progress)))

    @asynccontextmanager
    async def use(self) -> AsyncIterator[AsyncEngine]:
        """The engine, which does not leave while it is held here or answers; one that is not in memory is loaded first.

        Hold it until the request is queued. Raises ModelLoading while the server's first load goes on, ModelFailed, QueueFull
        where too many wait for the load, EngineDead when the server is stopping, UnknownModel while the model is being deleted.
        """
        if self._n_waiting >= self._max_waiting:
            raise QueueFull(f"{self._n_waiting} requests wait for the model {self.name}.", "Come back in a few seconds.")
        self._n_waiting += 1
        try:
            engine = await self._ready()
            self._n_held += 1
        finally:
            self._n_waiting -= 1
            self._last_used_s = time.monotonic()
        try:
            yield engine
        finally:
            self._n_held -= 1
            self._last_used_s = time.monotonic()

    async def _ready(self) -> AsyncEngine:
        while True:  # again if it was unloaded before this caller had its turn
            if self.state == "failed" and self.may_retry:
                self.state = "unloaded"
            if self.state == "unloaded":
                self._begin(on_demand=True)
            if self.state in ("waiting", "loading") and self._on_demand:
                assert self._loading is not None
                await asyncio.wait((self._loading,))  # who leaves does not end it
                if self._loading.cancelled():
                    raise _stopping()
            elif self._is_closing:
                await self._changed.wait(_LOOK_AGAIN_S)
            elif self.state == "failed":
                assert self.error is not None
                said = f"The model {self.name} could not be loaded: {self.error.message}"
                retry_after_s = max(1, math.ceil(self._retry_at - time.monotonic())) if self._may_pass else None
                raise ModelFailed(said, self.error.hint, retry_after_s)
            elif self._engine is None:
                raise ModelLoading(f"The model {self.name} is loading ({self.progress:.0%}).", self.retry_after_s)
            else:
                return self._engine

    @property
    def _is_closing(self) -> bool:
        return self._engine is not None and self._leaves_s is not None and time.monotonic() >= self._leaves_s

    def leave_at(self, when_s: float) -> None:
        """Another model needs the room: from `when_s` (time.monotonic()) on, who asks waits until this one was unloaded and
        has had its turn again. Running answers go on."""
        if self._leaves_s is None:
            self._leaves_s = when_s

    def stay(self) -> None:
        """The room is not needed any more."""
        self._leaves_s = None
        self._changed.notify()

    async def start(self) -> None:
        """Begin to load; returns at once. Who asks meanwhile is told to come back."""
        self._begin()

    def load(self) -> None:
        """Begin to load if it is neither in memory nor on its way. Raises EngineDead when the server is stopping, UnknownModel
        while the model is being deleted."""
        if self.state in ("unloaded", "failed"):
            self._begin(on_demand=True)
        self._wanted = True

    async def unload(self) -> None:
        """Free the model's memory; the next request loads it again. Live requests end with an error."""
        self._wanted = False
        engine, self._engine = self._engine, None
        if engine is None:
            return
        self.state = "unloaded"
        self.progress = 0.0
        self.stay()
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
            was_frozen = gc.get_freeze_count()
            gc.unfreeze()
            gc.collect()
            if was_frozen:
                gc.freeze()
            give_back_freed_memory()

    async def gone(self) -> None:
        """Return when no unload is under way."""
        async with self._memory:
            pass

    @asynccontextmanager
    async def kept_out(self) -> AsyncIterator[None]:
        """Inside, the model is not in memory, and who asks for it is refused: its files may be deleted. Raises ModelInUse."""
        if self.state not in ("unloaded", "failed"):
            raise ModelInUse(f"{self.name} is in memory, or on its way.", "Unload it first.")
        if self._kept_out:
            raise ModelInUse(f"{self.name} is being deleted.")
        self._kept_out = True
        try:
            await self.gone()
            yield
        finally:
            self._kept_out = False

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
        await self.gone()  # an unload that began elsewhere

    def _begin(self, *, on_demand: bool = False) -> None:
        if self._stopping:
            raise _stopping()
        if self._kept_out:
            raise UnknownModel(f"The model `{self.name}` is being deleted.")
        self._on_demand = on_demand
        self._wanted = False
        self.state = "loading"
        self.progress = 0.0
        self.error = None
        self._load_began = time.monotonic()
        self._loading = asyncio.create_task(self._run_load(), name=f"load-{self.name}")

    async def _run_load(self) -> None:
        try:
            async with self.turn(self), self._memory:
                self.state = "loading"
                self.waits_for = ()
                self._load_began = time.monotonic()
                self._take_over(await self._load(self._note_progress))
        except (_LoadStopped, NobodyWaits):
            self.state = "unloaded"
        except PagewellError as error:
            self._fail(error, may_pass=not isinstance(error, (ModelLoadError, ConfigError)))
        except Exception as error:
            log.exception("Loading %s failed", self.name)
            is_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))
            self._fail(PagewellError(f"{type(error).__name__}: {error}"), may_pass=not is_memory)
        finally:
            self.waits_for = ()

    def _take_over(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self.info = engine.info
        self.progress = 1.0
        self.state = "ready"
        self.ready_s = time.monotonic()
        self._leaves_s = None
        self._n_failures = 0
        log.info("Loaded %s in %.1f s", self.name, self.ready_s - self._load_began)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch(), name=f"watch-{self.name}")
        _tell(self.on_ready, engine)
        self._last_used_s = time.monotonic()  # silence begins when it could have been asked

    def _fail(self, error: PagewellError, *, may_pass: bool) -> None:
        self._may_pass = may_pass
        # Its tracebacks hold the load's variables, half a model among them.
        self.error = error.with_traceback(None)
        error.__cause__ = error.__context__ = None
        give_back_freed_memory()
        self.state = "failed"
        # The reason may pass: a full memory, a disk that was away, a file that is put in order.
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
        """As long as there is an engine."""
        while self._engine is not None and not self._stopping:
            await asyncio.sleep(_WATCH_S)
            try:
                await self._look()
            except Exception:
                log.exception("Watching over %s failed", self.name)

    async def _look(self) -> None:
        """Unload after silence; load a new engine when the old one has died."""
        # No variable here may hold the engine while it is unloaded.
        if self._engine is None:
            return
        if not self._engine.is_alive:
            log.error("The engine of %s has died; loading the model again", self.name)
            await self.unload()
            if self.state == "unloaded" and not self._stopping:  # no request has begun to load it meanwhile
                self._begin()
        elif self.is_busy:
            self._last_used_s = time.monotonic()
        elif self._idle_timeout_s and time.monotonic() - self._last_used_s > self._idle_timeout_s:
            await self.unload()


def _stopping() -> EngineDead:
    return EngineDead("The server is stopping.", "Come back when it runs again.")


def _tell(callbacks: list[Callable[[T], None]], value: T) -> None:
    for callback in callbacks:
        try:
            callback(value)
        except Exception:
            log.exception("A callback of the model's host failed")
