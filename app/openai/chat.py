"""A chat job's answer: whole, or as the chunks of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from app import sse
from app.openai.answers import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    Usage,
    usage,
)
from app.openai.job import Job
from app.openai.logprobs import chat_logprobs, prompt_logprobs
from engine.outputs import Completion, RequestOutput
from engine.types import Delta, Finished, FinishReason, TokenLogprob


def finish_reason(reason: FinishReason | None) -> str:
    """OpenAI's word for it. An answer that somebody ended from outside has stopped."""
    return "length" if reason is FinishReason.LENGTH else "stop"


def whole(job: Job, output: RequestOutput) -> ChatCompletion:
    """The body of a non-streamed answer."""
    assert output.usage is not None
    body = ChatCompletion(
        id=job.id,
        object="chat.completion",
        created=job.created,
        model=job.model,
        system_fingerprint=job.fingerprint,
        choices=[_choice(job, completion) for completion in output.outputs],
        usage=usage([output.usage]),
    )
    if output.prompt_logprobs is not None:
        body.prompt_logprobs = prompt_logprobs(job.tokenizer, output.prompt_logprobs)
    return body


def _choice(job: Job, completion: Completion) -> ChatChoice:
    choice = ChatChoice(completion.index, ChatMessage(completion.text), finish_reason(completion.finish_reason))
    if job.params.logprobs is not None:
        choice.logprobs = chat_logprobs(job.tokenizer, completion.logprobs or ())
    return choice


@dataclass(slots=True)
class _Open:
    """A choice that has not ended; log probabilities wait here for the text of their tokens."""

    held: list[TokenLogprob] = field(default_factory=list)


async def chunks(job: Job, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """The stream: role first, text as it comes, one finish for each choice, usage if asked, [DONE]."""
    open_choices = {index: _Open() for index in range(job.params.n)}
    total: Usage | None = None
    for index in open_choices:
        yield _chunk(job, ChatChunkChoice(index, ChatDelta(role="assistant", content="")))
    async for _, event in job.events():
        if isinstance(event, Delta):
            for choice in _delta_choices(job, open_choices[event.index], event):
                yield _chunk(job, choice)
            if event.finish_reason is not None:
                del open_choices[event.index]
        elif isinstance(event, Finished):
            total = usage([event.usage])
    for index in open_choices:
        yield _chunk(job, ChatChunkChoice(index, ChatDelta(), finish_reason(None)))
    if include_usage and total is not None:
        yield sse.data(_body(job, [], total))
    yield sse.DONE


def _delta_choices(job: Job, state: _Open, event: Delta) -> list[ChatChunkChoice]:
    """The content chunk and the final one that a delta makes; none when all of its text is held back."""
    state.held += event.logprobs or ()
    choices = []
    if event.text:
        choices.append(_with_logprobs(job, state, ChatChunkChoice(event.index, ChatDelta(content=event.text))))
    if event.finish_reason is not None:
        last = ChatChunkChoice(event.index, ChatDelta(), finish_reason(event.finish_reason))
        choices.append(_with_logprobs(job, state, last) if state.held else last)
    return choices


def _with_logprobs(job: Job, state: _Open, choice: ChatChunkChoice) -> ChatChunkChoice:
    if job.params.logprobs is not None:
        choice.logprobs = chat_logprobs(job.tokenizer, state.held)
        state.held = []
    return choice


def _chunk(job: Job, choice: ChatChunkChoice) -> bytes:
    return sse.data(_body(job, [choice]))


def _body(job: Job, choices: list[ChatChunkChoice], total: Usage | None = None) -> ChatChunk:
    chunk = ChatChunk(job.id, "chat.completion.chunk", job.created, job.model, job.fingerprint, choices)
    if total is not None:
        chunk.usage = total
    return chunk
