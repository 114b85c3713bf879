"""A request's events, gathered into its whole answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.types import Delta, Event, Finished, FinishReason, TokenLogprob, Usage


@dataclass(slots=True)
class Completion:
    """One choice. `finish_reason` is ABORT or ERROR when the request ended before the choice did."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """The answer to one request, complete once `usage` is set."""

    prompt_token_ids: list[int]
    outputs: list[Completion]
    usage: Usage | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    error: str | None = None

    @classmethod
    def empty(cls, prompt_token_ids: list[int], n: int) -> RequestOutput:
        return cls(prompt_token_ids, [Completion(index) for index in range(n)])

    def add(self, event: Event) -> None:
        if isinstance(event, Delta):
            choice = self.outputs[event.index]
            choice.text += event.text
            choice.token_ids += event.token_ids
            if event.logprobs is not None:
                choice.logprobs = choice.logprobs or []
                choice.logprobs.extend(event.logprobs)
            choice.finish_reason, choice.stop_reason = event.finish_reason, event.stop_reason
        elif isinstance(event, Finished):
            self.usage, self.prompt_logprobs, self.error = event.usage, event.prompt_logprobs, event.error
            if event.reason is not FinishReason.STOP:
                for choice in self.outputs:
                    choice.finish_reason = choice.finish_reason or event.reason
