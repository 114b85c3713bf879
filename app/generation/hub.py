"""GenerationHub: owns the task of every answer being written. Browsers come and go; only a stop or the end ends a task.

A running answer has three loops: one takes the engine's events, one turns new text into page operations every 50 ms,
one saves the text every half second. The first one's end ends the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from app.db.models import State
from app.errors import ModelLoading
from app.generation.live import Live, Phase
from app.generation.log import GenerationLog, Outcome
from app.models.host import ModelHost
from engine.admission import check_length
from engine.async_engine import AsyncEngine, RequestStream
from engine.errors import PagewellError, PromptTooLong
from engine.types import Delta, Finished, FinishReason, SamplingParams, Started

log = logging.getLogger(__name__)

TICK_S = 0.05
TICK_SHARE = 5
MAX_REST_S = 1.5
"""A tick is followed by five times its own length of rest, so that a long open block does not take a whole core."""
FLUSH_S = 0.5
LOADING_POLL_S = 0.2
LINGER_S = 60.0
"""How long an ended answer is still found here by a browser that is just connecting."""

_WAITS = {"loading": Phase.LOADING, "unloaded": Phase.LOADING}

Chat = list[dict[str, Any]]
"""Messages as the chat template takes them."""


class GenerationHub:
    def __init__(self, generations: GenerationLog) -> None:
        self.on_end: list[Callable[[Live], None]] = []
        """Called on the event loop when an answer has ended and is saved."""
        self._log = generations
        self._lives: dict[int, Live] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._streams: dict[int, RequestStream] = {}
        self._stopped: set[int] = set()

    async def open(self) -> None:
        """Call once the database is open, before the first browser comes."""
        await self._log.mark_interrupted()

    def start(self, live: Live, host: ModelHost, chat: Chat, params: SamplingParams) -> None:
        """Begin to write. The generation's row must be committed. A last message of the assistant is continued."""
        self._lives[live.generation_id] = live
        task = asyncio.create_task(self._run(live, host, chat, params), name=f"generation-{live.generation_id}")
        self._tasks[live.generation_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(live.generation_id, None))

    def get(self, generation_id: int) -> Live | None:
        """A running answer, or one that ended a moment ago."""
        return self._lives.get(generation_id)

    def running_in(self, conversation_id: int) -> Live | None:
        return next((live for live in self._lives.values() if live.conversation_id == conversation_id and not live.ended), None)

    def busy_conversations(self) -> set[int]:
        return {live.conversation_id for live in self._lives.values() if not live.ended}

    def stop(self, generation_id: int) -> None:
        """Ask an answer to end as it stands. Nothing happens if it has ended already."""
        if generation_id in self._tasks:
            self._stopped.add(generation_id)
            if stream := self._streams.get(generation_id):
                stream.abort()

    async def stop_and_wait(self, conversation_id: int) -> None:
        """End whatever is written in a conversation, and return when nothing more will be."""
        live = self.running_in(conversation_id)
        if live is not None:
            self.stop(live.generation_id)
            await asyncio.wait([self._tasks[live.generation_id]])

    async def close(self) -> None:
        """The server goes away: what is being written is saved as interrupted."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, live: Live, host: ModelHost, chat: Chat, params: SamplingParams) -> None:
        ended = asyncio.Event()
        helpers = [asyncio.create_task(self._tick(live)), asyncio.create_task(self._flush(live, ended))]
        try:
            outcome = await self._write(live, host, chat, params)
        except asyncio.CancelledError:
            outcome = Outcome(State.INTERRUPTED)
        except PromptTooLong as error:
            # Asking the same again can never succeed: its finish_reason tells it from other failures.
            hint = "Shorten your message, or start a new chat."
            outcome = Outcome(State.FAILED, FinishReason.LENGTH, error=error.message, hint=hint)
        except PagewellError as error:
            outcome = Outcome(State.FAILED, error=error.message, hint=error.hint)
        except Exception as error:
            log.exception("Generation %s failed", live.generation_id)
            outcome = Outcome(State.FAILED, error=f"{type(error).__name__}: {error}", hint="The server's log says more.")
        finally:
            if stream := self._streams.pop(live.generation_id, None):
                await stream.aclose()
            ended.set()
            helpers[0].cancel()
            # The flush is left to finish: a write that is cut off would leave its connection in the middle of something.
            await asyncio.wait(helpers)
        try:
            await self._log.finish(live.generation_id, live.message_id, live.text, outcome)
        except Exception:
            log.exception("The end of generation %s could not be saved", live.generation_id)
        self._stopped.discard(live.generation_id)
        live.end()
        asyncio.get_running_loop().call_later(LINGER_S, self._lives.pop, live.generation_id, None)
        for callback in self.on_end:
            callback(live)

    async def _write(self, live: Live, host: ModelHost, chat: Chat, params: SamplingParams) -> Outcome:
        async with AsyncExitStack() as held:
            engine = await self._engine(live, host, held)
            if engine is None:
                return Outcome(State.STOPPED)
            live.enter(Phase.QUEUED)
            prompt = await asyncio.to_thread(_prompt, engine, chat)
            if live.generation_id in self._stopped:
                return Outcome(State.STOPPED)
            params = replace(params, stop=(*params.stop, *engine.template.stop))
            stream = engine.submit(prompt, params, request_id=f"chat-{live.generation_id}")
            self._streams[live.generation_id] = stream
            del engine
        reason: str | None = None
        async for event in stream:
            match event:
                case Started():
                    live.n_prompt = event.n_prompt
                    live.enter(Phase.READING)
                case Delta():
                    if event.text:
                        live.enter(Phase.WRITING)
                        live.push(event.text)
                    reason = event.finish_reason or reason
                case Finished(reason=FinishReason.ERROR):
                    return Outcome(State.FAILED, None, event.usage, event.error or "The model could not compute this answer.")
                case Finished(reason=FinishReason.ABORT):
                    state = State.STOPPED if live.generation_id in self._stopped else State.INTERRUPTED
                    return Outcome(state, None, event.usage)
                case Finished():
                    return Outcome(State.DONE, reason, event.usage)
        return Outcome(State.INTERRUPTED)

    async def _engine(self, live: Live, host: ModelHost, held: AsyncExitStack) -> AsyncEngine | None:
        """The engine, once it is loaded, held by `held`; None if the answer was stopped before. Raises ModelFailed."""
        while live.generation_id not in self._stopped:
            entering = asyncio.create_task(held.enter_async_context(host.use()))
            try:
                while not entering.done() and live.generation_id not in self._stopped:
                    await asyncio.wait({entering}, timeout=LOADING_POLL_S)
                    if not entering.done():
                        live.enter(_WAITS.get(host.state, Phase.WAITING), round(host.progress, 2))
                if entering.done():
                    return entering.result()
            except ModelLoading:
                live.enter(Phase.LOADING, round(host.progress, 2))
            finally:
                entering.cancel()
                await asyncio.wait({entering})
            await asyncio.sleep(LOADING_POLL_S)
        return None

    async def _tick(self, live: Live) -> None:
        while True:
            if not live.is_dirty:
                await live.has_news.wait()
            began = time.perf_counter()
            try:
                live.tick()
            except Exception:
                log.exception("Generation %s cannot be shown while it is written", live.generation_id)
                return
            await asyncio.sleep(max(TICK_S, min(MAX_REST_S, TICK_SHARE * (time.perf_counter() - began))))

    async def _flush(self, live: Live, ended: asyncio.Event) -> None:
        saved = live.text
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), FLUSH_S)
                return
            if live.text != saved:
                text = live.text
                try:
                    await self._log.save_text(live.message_id, text)
                    saved = text
                except Exception:
                    log.exception("The text of message %s could not be saved; trying again", live.message_id)


def _prompt(engine: AsyncEngine, chat: Chat) -> list[int]:
    """Token ids of a chat; runs on a worker thread, because templates and long texts would hold up the event loop."""
    if engine.template is None:
        raise PagewellError(
            f"The chat template of {engine.info.name} cannot be read, so it cannot hold a conversation.",
            "Serve another checkpoint of it, or use /v1/completions.",
        )
    continues = chat[-1]["role"] == "assistant"
    text = engine.template.render(chat, add_generation_prompt=not continues, continue_final=continues)
    check_length(text, engine.tokenizer, engine.info.max_model_len)
    return engine.tokenizer.encode(text, add_special=False)
