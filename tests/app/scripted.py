"""A model host and an engine whose answers a test writes by hand, over the engine's real request streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

from app.errors import ModelFailed, ModelLoading
from engine.async_engine import RequestStream
from engine.errors import PagewellError
from engine.types import Delta, Finished, FinishReason, SamplingParams, Started, Usage


class Answer:
    """One submitted request. The test calls `begin`, `say` and `end`; an abort by the server ends it as the engine does."""

    def __init__(self, uid: int, prompt: str, params: SamplingParams) -> None:
        self.prompt = prompt
        self.params = params
        self.stream = RequestStream(uid, self._abort)
        self.text = ""
        self.aborted = False
        self._ended = False

    def begin(self, n_cached: int = 0) -> Answer:
        self.stream.put(Started(self.stream.uid, len(self.prompt), n_cached, 0.0))
        self._n_cached = n_cached
        return self

    def say(self, text: str) -> Answer:
        self.text += text
        self.stream.put(Delta(self.stream.uid, 0, text, (1,)))
        return self

    def end(self, reason: FinishReason = FinishReason.STOP) -> None:
        self.stream.put(Delta(self.stream.uid, 0, "", (), None, reason))
        self._finish(FinishReason.STOP)

    def fail(self, error: str) -> None:
        self._finish(FinishReason.ERROR, error)

    def _abort(self, _: int) -> None:
        self.aborted = True
        self._finish(FinishReason.ABORT)

    def _finish(self, reason: FinishReason, error: str | None = None) -> None:
        if not self._ended:
            self._ended = True
            usage = Usage(len(self.prompt), getattr(self, "_n_cached", 0), len(self.text), 0, 0.0, 0.25, 2.25)
            self.stream.put(Finished(self.stream.uid, reason, usage, None, error))


class ScriptedEngine:
    """`answers` are the requests so far, oldest first. The prompt is the chat written out, one character a token."""

    def __init__(self, *, has_template: bool = True, refusal: PagewellError | None = None) -> None:
        self.answers: list[Answer] = []
        self.info = SimpleNamespace(name="scripted", max_model_len=4096, memory_note="limited by <what> is free")
        self.template = SimpleNamespace(render=_render, stop=("<user>",)) if has_template else None
        self.tokenizer = SimpleNamespace(
            encode=lambda text, *, add_special: list(map(ord, text)), at_least=lambda text: len(text) // 100
        )
        self._refusal = refusal
        self.on_submit: Callable[[Answer], None] = lambda answer: None

    def submit(self, prompt_token_ids: list[int], params: SamplingParams, **_: object) -> RequestStream:
        if self._refusal:
            raise self._refusal
        answer = Answer(len(self.answers), "".join(map(chr, prompt_token_ids)), params)
        self.answers.append(answer)
        self.on_submit(answer)
        return answer.stream

    async def answer(self, n: int = -1) -> Answer:
        """The nth request, once it is there."""
        await until(lambda: len(self.answers) > max(n, 0) or (n < 0 and bool(self.answers)))
        return self.answers[n]


class ScriptedHost:
    """A model that is ready, or `state` says otherwise."""

    def __init__(self, engine: ScriptedEngine, state: str = "ready") -> None:
        self.name = "scripted-1B"
        self.model = None
        self.state = state
        self.progress = 1.0 if state == "ready" else 0.4
        self.error = PagewellError("The file is damaged.", "Download it again.") if state == "failed" else None
        self._engine = engine

    @property
    def info(self) -> SimpleNamespace | None:
        return self._engine.info if self.state == "ready" else None

    @asynccontextmanager
    async def use(self) -> AsyncIterator[ScriptedEngine]:
        if self.state == "failed":
            raise ModelFailed("The model scripted-1B could not be loaded: the file is damaged.", "Download it again.")
        if self.state == "loading":
            raise ModelLoading("The model is loading.", 1)
        yield self._engine


def _render(chat: list[dict[str, str]], *, add_generation_prompt: bool, continue_final: bool) -> str:
    written = "".join(f"<{m['role']}>{m['content']}" for m in chat)
    assert continue_final != add_generation_prompt
    return written + ("<assistant>" if add_generation_prompt else "")


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Wait for something that the event loop brings about by itself."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
