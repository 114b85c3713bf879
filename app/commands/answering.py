"""Where `pagewell chat` gets its answers: a running server, or a model in this process. Both look alike to it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import click
import httpx
from httpx_sse import aconnect_sse

from app.catalog.disk import LocalModel
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
        self._client = client_of(url, api_key)

    async def stream(self, messages: list[Message], sampling: Sampling) -> AsyncIterator[str]:
        self.tally = None
        asked = {key: getattr(sampling, key) for key in Sampling.__slots__ if getattr(sampling, key) is not None}
        body = {"model": self.name, "messages": messages, "stream": True, "stream_options": {"include_usage": True}, **asked}
        began = time.monotonic()
        first: float | None = None
        async with aconnect_sse(self._client, "POST", "/v1/chat/completions", json=body) as source:
            if source.response.is_error:
                await source.response.aread()
                raise PagewellError(_error_text(source.response))
            async for event in source.aiter_sse():
                if event.data == "[DONE]":
                    return
                chunk = event.json()
                if "error" in chunk:
                    raise PagewellError(chunk["error"]["message"])
                if usage := chunk.get("usage"):
                    now = time.monotonic()
                    self.tally = _tally(usage, (first or now) - began, now - began)
                for choice in chunk["choices"]:
                    if text := choice["delta"].get("content"):
                        first = first or time.monotonic()
                        yield text

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
                f"{model.name} has no chat template: it continues text, but does not chat.", "Choose an instruct model."
            )
        return cls(engine, model.name)

    async def stream(self, messages: list[Message], sampling: Sampling) -> AsyncIterator[str]:
        from engine.types import Delta, Finished, FinishReason, SamplingParams

        self.tally = None
        prompt = self._engine.tokenizer.encode(self._engine.template.render(messages), add_special=False)
        asked = {key: getattr(sampling, key) for key in Sampling.__slots__ if getattr(sampling, key) is not None}
        stream = self._engine.submit(prompt, SamplingParams(**asked))
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


def client_of(url: str, api_key: str | None) -> httpx.AsyncClient:
    """A client for a Pagewell or any OpenAI-compatible server; waits long for answers, briefly for a connection."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=httpx.Timeout(600, connect=3), trust_env=False)


async def served_names(url: str, api_key: str | None) -> list[str] | None:
    """Models that a server offers; None when none answers there. PagewellError when it answers with an error."""
    async with client_of(url, api_key) as client:
        try:
            response = await client.get("/v1/models")
        except httpx.TransportError:
            return None
    if response.is_error:
        raise PagewellError(
            f"The server at {url} answers {response.status_code}: {_error_text(response)}", "Check --url and --api-key."
        )
    return [entry["id"] for entry in response.json()["data"]]


def _tally(usage: dict[str, Any], ttft_s: float, total_s: float) -> Tally:
    details = usage.get("prompt_tokens_details") or {}
    return Tally(usage["prompt_tokens"], details.get("cached_tokens") or 0, usage["completion_tokens"], ttft_s, total_s)


def _error_text(response: httpx.Response) -> str:
    try:
        return response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return response.text[:200] or response.reason_phrase
