"""AsyncEngine: the app's handle on the engine. Requests go in, asynchronous streams of events come out."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec import structs

from engine.admission import check_params, check_prompt
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import EngineDead, PinRefused, QueueFull
from engine.info import ModelInfo
from engine.loading import Progress, load_core
from engine.stats import EngineStats
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.types import Event, Finished, FinishReason, Request, SamplingParams, Usage

log = logging.getLogger(__name__)

T = TypeVar("T")

_uids = itertools.count()
"""Of all engines of this process: a number stands for one request, whichever model answers it."""


class RequestStream(AsyncIterator[Event]):
    """Events of one request: Started, Deltas, and exactly one Finished as the last. Closing it early aborts the request."""

    def __init__(self, uid: int, abort: Callable[[int], None]) -> None:
        self.uid = uid
        self._abort = abort
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended = False

    def put(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def __anext__(self) -> Event:
        if self._ended:
            raise StopAsyncIteration
        event = await self._events.get()
        self._ended = isinstance(event, Finished)
        return event

    def abort(self) -> None:
        """Ask the engine to end the request; its Finished event still comes."""
        self._abort(self.uid)

    async def aclose(self) -> None:
        """Abort the request if it has not ended, and end the iteration."""
        if not self._ended:
            self._ended = True
            self.abort()


class Pin(NamedTuple):
    """A prefix that stays in the cache, and what that costs."""

    uid: int
    n_tokens: int
    n_blocks: int
    n_bytes: int


class AsyncEngine:
    """One loaded model on an engine thread. Create it with `load`; every method belongs to the event loop's thread."""

    def __init__(
        self,
        make_core: Callable[[Callable[[list[Event]], None]], EngineCore],
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        info: ModelInfo,
        config: EngineConfig,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.info = info
        self.observers: list[Callable[[Event], None]] = []
        self.ahead: Callable[[Request], Awaitable[None]] | None = None
        """Awaited with each request before the engine gets it: what is fetched meanwhile is found at its admission."""
        self._ahead: dict[int, tuple[Request, asyncio.Task[None]]] = {}
        """Requests that the engine has not got yet, by uid."""
        self._loop = asyncio.get_running_loop()
        self._core = make_core(lambda events: self._loop.call_soon_threadsafe(self._dispatch, events))
        self._core.uids = _uids
        self._max_live = config.max_num_seqs + config.max_waiting
        self._streams: dict[int, RequestStream] = {}
        self._thread = threading.Thread(target=self._core.run, name="engine", daemon=True)
        self._thread.start()

    @classmethod
    async def load(
        cls, path: Path, config: EngineConfig, progress: Progress | None = None, *, promised_bytes: int = 0
    ) -> AsyncEngine:
        """Load a checkpoint (GGUF file or Hugging Face folder) on a worker thread and start the engine.

        `progress(done_bytes, total_bytes)` is called on that thread. promised_bytes: what other engines of this process may
        yet take of free memory. Raises ModelLoadError, ConfigError.
        """
        loaded = await asyncio.to_thread(load_core, path, config, progress, promised_bytes=promised_bytes)
        return cls(loaded.make_core, loaded.tokenizer, loaded.template, loaded.info, config)

    @property
    def is_alive(self) -> bool:
        """False once the engine thread has ended, by `close` or by a broken law."""
        return self._thread.is_alive()

    @property
    def n_live(self) -> int:
        """Requests that have not ended, waiting ones among them."""
        return len(self._streams)

    def is_live(self, uid: int) -> bool:
        """Whether this request was accepted and has not ended."""
        return uid in self._streams

    def submit(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str = "",
        cache_salt: str = "",
        priority: int = 0,
        pins: bool = False,
    ) -> RequestStream:
        """Queue a request. Raises PromptTooLong, InvalidRequest, QueueFull or EngineDead before anything is queued."""
        self._require_alive()
        check_params(params, self.info.n_vocab)
        check_prompt(prompt_token_ids, self.info.n_vocab, self.info.max_model_len)
        if self.n_live >= self._max_live:
            raise QueueFull(f"{self.n_live} requests are running or waiting.", "Come back in a few seconds.")
        request = Request(request_id, prompt_token_ids, params, cache_salt=cache_salt, priority=priority, pins=pins)
        uid = self._core.take_in(request)
        if self.ahead is None:
            self._core.enqueue(request)
        else:
            self._ahead[uid] = request, asyncio.create_task(self._go_ahead(request, self.ahead), name=f"ahead-{uid}")
        stream = self._streams[uid] = RequestStream(uid, self.abort)
        return stream

    async def _go_ahead(self, request: Request, ahead: Callable[[Request], Awaitable[None]]) -> None:
        try:
            await ahead(request)
        except Exception:
            log.exception("What was to be fetched for request %d failed; it is computed here", request.uid)
        self._enqueue(request.uid)

    def _enqueue(self, uid: int) -> None:
        """Give the engine a request now, if it has not got it, whatever was to be fetched for it."""
        request, task = self._ahead.pop(uid, (None, None))
        if request is None or task is None:
            return
        if task is not asyncio.current_task():
            task.cancel()
        try:
            self._core.enqueue(request)
        except EngineDead as error:
            usage = Usage(len(request.prompt_token_ids), 0, 0, 0, 0.0, None, time.monotonic() - request.arrival_s)
            self._dispatch([Finished(uid, FinishReason.ERROR, usage, None, error.message)])

    def abort(self, uid: int) -> None:
        """End a request within one step; nothing happens if it has ended already."""
        self._enqueue(uid)
        self._core.abort(uid)

    async def ask(self, question: Callable[[EngineCore], T]) -> T:
        """The answer to a question that is put on the engine thread, once the step under way is done. Raises EngineDead."""
        self._require_alive()
        answer: asyncio.Future[T] = self._loop.create_future()
        self._core.ask(question, lambda value: self._loop.call_soon_threadsafe(_resolve, answer, value))
        while not answer.done():
            await asyncio.wait([answer], timeout=1.0)
            if not answer.done():
                self._require_alive()
        return answer.result()

    async def stats(self) -> EngineStats:
        """A snapshot taken between two steps. Raises EngineDead."""
        stats = await self.ask(lambda core: core.stats())
        return structs.replace(stats, n_waiting=stats.n_waiting + len(self._ahead)) if self._ahead else stats

    async def pin(self, prompt_token_ids: list[int], *, cache_salt: str = "") -> Pin:
        """Compute a prefix, if it is not known, and keep its full blocks in the cache: until they are unpinned, the model is
        unloaded, or a request needs the room. Raises PinRefused where too much is pinned already, and what `submit` raises."""
        params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
        stream = self.submit(prompt_token_ids, params, cache_salt=cache_salt, pins=True)
        async for event in stream:
            if isinstance(event, Finished) and event.reason is not FinishReason.STOP:
                raise PinRefused(event.error or "The request that was to compute the prefix was ended.")
        for pin in await self.pins():
            if pin.uid == stream.uid:
                return pin
        raise PinRefused("A request needed the room at once, and the pin was lifted.")

    async def unpin(self, uid: int) -> int:
        """Lift a pin; returns the number of its blocks, 0 where there is none. Raises EngineDead."""
        return await self.ask(lambda core: core.kv.pins.unpin(uid))

    async def pins(self) -> list[Pin]:
        """All pins, the oldest first. Raises EngineDead."""
        pinned = await self.ask(lambda core: {uid: core.kv.pins[uid] for uid in core.kv.pins})
        return [Pin(uid, *what) for uid, what in pinned.items()]

    async def evict_cached(self) -> int:
        """Forget the prefix cache; returns the number of blocks. Raises EngineDead."""
        return await self.ask(lambda core: core.kv.evict_cached())

    async def close(self) -> None:
        """End the engine thread. Live streams get their Finished event, an error that says the model was unloaded."""
        for uid in list(self._ahead):
            self._enqueue(uid)
        self._core.stop()
        await asyncio.to_thread(self._thread.join)
        await asyncio.sleep(0)  # the last batch of events was posted before the thread ended

    def _require_alive(self) -> None:
        if not self.is_alive:
            raise EngineDead(f"The engine has stopped: {self._core.error or 'it was closed'}.", "Load the model again.")

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            is_last = isinstance(event, Finished)
            stream = self._streams.pop(event.uid, None) if is_last else self._streams.get(event.uid)
            if stream is not None:
                stream.put(event)
            for observer in self.observers:
                try:
                    observer(event)
                except Exception:
                    log.exception("An observer of the engine failed on %r", event)


def _resolve(answer: asyncio.Future, value: object) -> None:
    if not answer.done():
        answer.set_result(value)
