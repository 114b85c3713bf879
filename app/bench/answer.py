"""One request as its client saw it, read from what came over the wire."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from app.bench.wire import BadReply, Reply


@dataclass(slots=True)
class Answer:
    """Times in seconds from when the request was sent."""

    index: int
    sent_s: float
    """From the start of the whole load."""
    pieces_s: list[float] = field(default_factory=list)
    """When each piece with text came; one whose tokens have no text (only special ones) came when the server said its end."""
    total_s: float = 0.0
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0
    """As the server counts, or the number of pieces where it does not."""
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.pieces_s[0]

    @property
    def gaps_s(self) -> list[float]:
        """Between one piece and the next (inter-token latency)."""
        return [later - sooner for sooner, later in zip(self.pieces_s, self.pieces_s[1:], strict=False)]

    def read(self, reply: Reply) -> Answer:
        """Take over the figures of a streamed chat completion; whatever is wrong with it becomes the error."""
        self.total_s = reply.total_s
        try:
            self.error = self._read(reply)
        except (BadReply, msgspec.MsgspecError) as error:
            self.error = f"no stream of a chat completion: {error}"
        if reply.error is not None:
            self.error = reply.error
        self.n_output = self.n_output or len(self.pieces_s)
        return self

    def _read(self, reply: Reply) -> str | None:
        """What is wrong with the answer, or None."""
        if reply.error is not None:
            return reply.error
        if reply.status != 200:
            return f"{reply.status}: {reply.text()[:200]}"
        ended_s: float | None = None
        for now_s, data in reply.events():
            if data == "[DONE]":
                ended_s = now_s if ended_s is None else ended_s
                break
            chunk = msgspec.json.decode(data, type=_Chunk)
            if chunk.error is not None:
                return chunk.error if isinstance(chunk.error, str) else chunk.error.message
            for choice in chunk.choices:
                if choice.delta.content or choice.delta.reasoning_content:
                    self.pieces_s.append(now_s)
                if choice.finish_reason is not None and ended_s is None:
                    ended_s = now_s
            if chunk.usage is not None:
                self._count(chunk.usage)
        if ended_s is None:
            return "the answer broke off"
        if not self.pieces_s and self.n_output:
            self.pieces_s = [ended_s]
        return None if self.pieces_s else "the answer had no text"

    def _count(self, usage: _Usage) -> None:
        self.n_prompt = usage.prompt_tokens
        self.n_output = usage.completion_tokens
        self.n_cached = (usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None) or 0


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Error(msgspec.Struct):
    message: str = "an error without a message"


class _Chunk(msgspec.Struct):
    """What is used of a chunk of a chat completion; other fields are left out."""

    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: _Error | str | None = None
