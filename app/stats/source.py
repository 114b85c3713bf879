"""Where samples of one model come from: its host, and the one question that may take long, `engine.stats()`.

The question is asked of the engine thread, which answers between two steps. While a long step runs, the last answer
stands and grows old; nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from app.stats.answers import Answers
from app.stats.frames import ModelSection
from engine.errors import PagewellError
from engine.stats import EngineStats


class Host(Protocol):
    """What the feed needs of app.models.host.ModelHost."""

    name: str
    state: str
    progress: float
    error: PagewellError | None
    waits_for: tuple[str, ...]
    on_ready: list[Callable[[Any], None]]
    on_unload: list[Callable[[Any], None]]


class Source:
    """The newest statistics of whatever engine the host has.

    The engine comes through `host.on_ready`, never through `host.engine`: that one counts as use, and a dashboard that
    looks on must neither keep a model in memory nor load it.
    """

    def __init__(self, host: Host, answers: Answers, clock: Callable[[], float]) -> None:
        self._host = host
        self._answers = answers
        self._observe = partial(answers.observe, model=host.name)
        self._clock = clock
        self._engine: Any = None
        self._question: asyncio.Task[EngineStats] | None = None
        self._answered_s = 0.0
        self.stats: EngineStats | None = None
        """The last answer; None while there is no engine or it has not answered yet."""
        self.failure = ""
        """Why the engine could not answer."""
        host.on_ready.append(self._adopt)
        host.on_unload.append(lambda _: self._leave())

    @property
    def name(self) -> str:
        """Of the model."""
        return self._host.name

    @property
    def engine(self) -> Any:
        """The engine in use, None while there is none."""
        return self._engine if self._host.state == "ready" else None

    @property
    def age_s(self) -> float:
        """How old `stats` is."""
        return max(0.0, self._clock() - self._answered_s) if self.stats is not None else 0.0

    async def poll(self, patience_s: float) -> None:
        """Ask, and wait at most `patience_s` for the answer; a question still open is not asked again."""
        engine = self.engine
        if engine is None:
            self._leave()
            return
        if self._question is None:
            self._question = asyncio.create_task(engine.stats())
        question = self._question
        done, _ = await asyncio.wait({question}, timeout=patience_s)
        if not done or question is not self._question:  # the second: another engine came, or none is left
            return
        self._question = None
        if question.cancelled():
            return
        error = question.exception()
        if error is None:
            self.stats, self.failure, self._answered_s = question.result(), "", self._clock()
        else:
            self.stats, self.failure = None, str(error) or type(error).__name__

    def model(self) -> ModelSection:
        """The model's state; an engine that stopped answering counts as failed."""
        host = self._host
        if self._engine is None or self.failure:
            state, error = ("failed", self.failure) if self.failure else (host.state, str(host.error or ""))
            waits_for = tuple(host.waits_for) if state == "waiting" else ()
            return ModelSection(state=state, name=host.name, progress=round(host.progress, 3), error=error, waits_for=waits_for)
        info = self._engine.info
        return ModelSection(
            state="ready",
            name=self._host.name,
            progress=1.0,
            family=info.family,
            quantization=info.quantization,
            dtype=info.dtype,
            max_model_len=info.max_model_len,
            n_params=info.n_params,
            weights_bytes=info.weights_bytes,
            kv_bytes=info.kv_bytes,
            block_size=info.block_size,
            memory_note=info.memory_note,
            kv_groups={group.name: group.n_blocks for group in info.kv_groups},
        )

    async def close(self) -> None:
        """Let go of the engine and of an open question."""
        question = self._question
        self._leave()
        if question is not None:
            await asyncio.wait({question})

    def _adopt(self, engine: Any) -> None:
        self._leave()
        self._engine = engine
        engine.observers.append(self._observe)

    def _leave(self) -> None:
        if self._engine is None:
            return
        if self._question is not None:
            self._question.cancel()
            self._question = None
        self._engine.observers.remove(self._observe)
        self._answers.forget_live(self.name)
        self._engine, self.stats, self.failure = None, None, ""
