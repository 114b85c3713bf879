"""A text completion job's answer: whole, or as the chunks of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from app import sse
from app.openai.answers import TextChoice, TextCompletion, TextLogprobs, Usage, usage
from app.openai.chat import finish_reason
from app.openai.job import Job
from app.openai.logprobs import TextLogprobsBuilder, prompt_logprobs
from engine.outputs import Completion, RequestOutput
from engine.types import Delta, Finished, TokenLogprob
from engine.types import Usage as EngineUsage


def echoes(job: Job, prompt: object) -> list[str]:
    """The prompts' texts as the client wrote them, or those of its token ids."""
    given = [prompt] if isinstance(prompt, str) else prompt
    if isinstance(given, list) and all(isinstance(text, str) for text in given):
        return given
    return [job.tokenizer.decode(token_ids, skip_special=False) for token_ids in job.prompts]


def whole(
    job: Job, outputs: list[RequestOutput], *, echoes: list[str] | None, prompt_only: bool, show_prompt_logprobs: bool
) -> TextCompletion:
    """The body of a non-streamed answer; choices of the first prompt come first.

    `echoes` are the prompts' texts, to stand before the answers. `prompt_only` shows nothing generated.
    """
    choices = []
    for place, output in enumerate(outputs):
        for completion in output.outputs:
            if prompt_only:
                completion = Completion(completion.index, finish_reason=completion.finish_reason, logprobs=[])
            choice = _choice(job, place, output, completion, echoes)
            if show_prompt_logprobs and output.prompt_logprobs is not None:
                choice.prompt_logprobs = prompt_logprobs(job.tokenizer, output.prompt_logprobs)
            choices.append(choice)
    body = _body(job, choices)
    parts = [output.usage for output in outputs if output.usage is not None]
    body.usage = usage(parts, n_output=0 if prompt_only else None)
    return body


def _choice(job: Job, place: int, output: RequestOutput, completion: Completion, echoes: list[str] | None) -> TextChoice:
    text = completion.text if echoes is None else echoes[place] + completion.text
    choice = TextChoice(place * job.params.n + completion.index, text, finish_reason(completion.finish_reason))
    if job.params.logprobs is not None:
        token_ids, rows = completion.token_ids, list[TokenLogprob | None](completion.logprobs or ())
        if echoes is not None:
            token_ids, rows = output.prompt_token_ids + token_ids, [*(output.prompt_logprobs or ()), *rows]
        choice.logprobs = TextLogprobsBuilder(job.tokenizer).add(token_ids, rows)
    return choice


@dataclass(slots=True)
class _Open:
    """A choice that has not ended; tokens with their log probabilities wait here for their text."""

    logprobs: TextLogprobsBuilder
    token_ids: list[int] = field(default_factory=list)
    rows: list[TokenLogprob] = field(default_factory=list)


async def chunks(job: Job, *, echoes: list[str] | None, prompt_only: bool, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """The stream: the prompt if echoed, text as it comes, one finish for each choice, usage if asked, [DONE]."""
    n = job.params.n
    open_choices = {index: _Open(TextLogprobsBuilder(job.tokenizer)) for index in range(job.n_choices)}
    parts: list[EngineUsage] = []
    yield sse.KEEP_ALIVE
    if echoes is not None:
        for index in open_choices:
            yield _chunk(job, TextChoice(index, echoes[index // n]))
    async for place, event in job.events():
        if isinstance(event, Delta):
            index = place * n + event.index
            shown = Delta(event.uid, event.index, "", (), None, event.finish_reason) if prompt_only else event
            for choice in _delta_choices(job, index, open_choices[index], shown):
                yield _chunk(job, choice)
            if event.finish_reason is not None:
                del open_choices[index]
        elif isinstance(event, Finished):
            parts.append(event.usage)
    for index in open_choices:
        yield _chunk(job, TextChoice(index, "", finish_reason(None)))
    if include_usage:
        yield _last(job, usage(parts, n_output=0 if prompt_only else None))
    yield sse.DONE


def _delta_choices(job: Job, index: int, state: _Open, event: Delta) -> list[TextChoice]:
    state.token_ids += event.token_ids
    state.rows += event.logprobs or ()
    choices = []
    if event.text:
        choices.append(TextChoice(index, event.text, logprobs=_logprobs(job, state)))
    if event.finish_reason is not None:
        choices.append(TextChoice(index, "", finish_reason(event.finish_reason), _logprobs(job, state)))
    return choices


def _logprobs(job: Job, state: _Open) -> TextLogprobs | None:
    if job.params.logprobs is None or not state.rows:
        return None
    part = state.logprobs.add(state.token_ids, state.rows)
    state.token_ids, state.rows = [], []
    return part


def _chunk(job: Job, choice: TextChoice) -> bytes:
    return sse.data(_body(job, [choice]))


def _last(job: Job, total: Usage) -> bytes:
    body = _body(job, [])
    body.usage = total
    return sse.data(body)


def _body(job: Job, choices: list[TextChoice]) -> TextCompletion:
    return TextCompletion(job.id, "text_completion", job.created, job.model, job.fingerprint, choices)
