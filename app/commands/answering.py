"""Where `pagewell chat` gets its answers: a running server, or a model in this process. Both look alike to it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import click
import httpx
import msgspec
from httpx_sse import aconnect_sse

from app.catalog.disk import LocalModel
from app.client import ErrorMessage, client_of, error_text
from app.printable import printable
from engine.config import EngineConfig
from engine.errors import PagewellError

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the person asked for; None leaves it to the server."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """Figures of one finished answer."""

    n_prompt: int
    n_cached: int
    n_output: int
    ttft_s: float
    total_s: float

    def __str__(self) -> str:
        decode_s = self.total_s - self.ttft_s
        rate = f"{(self.n_output - 1) / decode_s:.1f} tok/s, " if self.n_output > 1 and decode_s > 0 else ""
        return f"{self.n_output} tokens, {rate}first after {self.ttft_s:.2f} s, prompt {self.n_prompt} ({self.n_cached} cached)"


class Answerer(Protocol):
    """Answers conversations."""

    name: str
    tally: Tally | None
    """Of the last answer, when it came to its end."""

    def stream(self, messages: list[Message], sampling: Sampling) -> AsyncIterator[str]:
        """Pieces of the answer. Leaving the iteration early stops the answer."""
        ...

    async def close(self) -> None: ...


class ServerAnswerer:
    """A server's /v1/chat/completions."""

    def __init__(self, url: str, api_key: str | None, name: str) -> None:
        self.name = name
        self.tally: Tally | None = None
        self._url = url
        self._client = client_of(url, api_key)

    async def stream(self, messages: list[Message], sampling: Sampling) -> AsyncIterator[str]:
        """Raises PagewellError for whatever goes wrong with the server, its connection or what it sends."""
        self.tally = None
        asked = {key: getattr(sampling, key) for key in Sampling.__slots__ if getattr(sampling, key) is not None}
        body = {"model": self.name, "messages": messages, "stream": True, "stream_options": {"include_usage": True}, **asked}
        began = time.monotonic()
        first: float | None = None
        has_begun = False
        try:
            async with aconnect_sse(self._client, "POST", "/v1/chat/completions", json=body) as source:
                if source.response.is_error:
                    await source.response.aread()
                    raise PagewellError(error_text(source.response))
                has_begun = True
                async for event in source.aiter_sse():
                    if event.data == "[DONE]":
                        return
                    chunk = msgspec.json.decode(event.data, type=_Chunk)
                    if chunk.error is not None:
                        raise PagewellError(printable(chunk.error.message))
                    if chunk.usage is not None:
                        now = time.monotonic()
                        self.tally = chunk.usage.tally((first or now) - began, now - began)
                    for choice in chunk.choices:
                        if choice.delta.content:
                            first = first or time.monotonic()
                            yield choice.delta.content
        except httpx.HTTPError as error:
            if has_begun and isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
                raise PagewellError(
                    f"The server at {self._url} went away in mid-answer.",
                    "The conversation goes on without this question and its answer: ask again once the server is back.",
                ) from error
            reason = printable(str(error)) or type(error).__name__
            raise PagewellError(
                f"The connection to {self._url} failed: {reason}", "Ask again once the server answers."
            ) from error
        except msgspec.MsgspecError as error:
            raise PagewellError(f"What {self._url} sends is no chat completion: {error}", "Check --url.") from error

    async def close(self) -> None:
        await self._client.aclose()


class LocalAnswerer:
    """A model loaded into this process."""

    def __init__(self, engine: Any, name: str) -> None:
        self.name = name
        self.tally: Tally | None = None
        self._engine = engine

    @classmethod
    async def load(cls, model: LocalModel, config: EngineConfig) -> LocalAnswerer:
        """Load with a progress bar. Raises ModelLoadError, ConfigError."""
        from engine.async_engine import AsyncEngine

        with click.progressbar(length=model.n_bytes, label=f"Loading {model.name}", file=click.get_text_stream("stderr")) as bar:
            engine = await AsyncEngine.load(
                model.path, config, lambda done, total: bar.update(model.n_bytes * done // total - bar.pos)
            )
        if engine.template is None:
            await engine.close()
            raise PagewellError(
                f"The chat template of {model.name} cannot be read, so it cannot hold a conversation.", "Choose another model."
            )
        return cls(engine, model.name)

    async def stream(self, messages: list[Message], sampling: Sampling) -> AsyncIterator[str]:
        from engine.types import Delta, Finished, FinishReason, SamplingParams

        self.tally = None
        prompt = self._engine.tokenizer.encode(self._engine.template.render(messages), add_special=False)
        asked = {key: getattr(sampling, key) for key in Sampling.__slots__ if getattr(sampling, key) is not None}
        stream = self._engine.submit(prompt, SamplingParams(**asked, stop=self._engine.template.stop))
        try:
            async for event in stream:
                if isinstance(event, Delta) and event.text:
                    yield event.text
                elif isinstance(event, Finished):
                    if event.reason is FinishReason.ERROR:
                        raise PagewellError(event.error or "The engine failed.")
                    used = event.usage
                    self.tally = Tally(used.n_prompt, used.n_cached, used.n_output, used.ttft_s or used.total_s, used.total_s)
        finally:
            await stream.aclose()

    async def close(self) -> None:
        await self._engine.close()


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None

    def tally(self, ttft_s: float, total_s: float) -> Tally:
        n_cached = self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None
        return Tally(self.prompt_tokens, n_cached or 0, self.completion_tokens, ttft_s, total_s)


class _Chunk(msgspec.Struct):
    """What is used of a chunk of a chat completion; other fields are left out."""

    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: ErrorMessage | None = None
