"""RequestGroup: one request with its n sequences, from one shared prefill to one terminal event."""

from __future__ import annotations

import time

from engine.text.output import OutputText
from engine.text.tokenizer import Tokenizer
from engine.types import Finished, FinishReason, Request, Sequence, Usage


class RequestGroup:
    """The sequences of one request. The first one computes the prompt; `fork` makes the others from its blocks."""

    def __init__(self, request: Request, tokenizer: Tokenizer, *, seed: int, max_model_len: int) -> None:
        self.request = request
        self._tokenizer = tokenizer
        self._seed = seed
        self._max_model_len = max_model_len
        self.started = False
        self.sequences = [self._sequence(0)]

    def _sequence(self, index: int) -> Sequence:
        request, params = self.request, self.request.params
        room = self._max_model_len - len(request.prompt_token_ids)
        seq = Sequence(
            request=request,
            index=index,
            token_ids=list(request.prompt_token_ids),
            n_prompt=len(request.prompt_token_ids),
            seed=self._seed,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            end_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._tokenizer.end_ids),
            text=OutputText(
                self._tokenizer,
                stop=params.stop,
                include_stop=params.include_stop_str_in_output,
                skip_special=params.skip_special_tokens,
            ),
        )
        if params.prompt_logprobs is not None and index == 0:
            seq.prompt_logprobs = [None]  # the first token has nothing before it
        return seq

    def fork(self) -> list[Sequence]:
        """The remaining n - 1 sequences, once the first has computed the prompt; the caller shares its blocks with them.

        Each computes the prompt's last token again, so that its first draw is an ordinary decode.
        """
        children = [self._sequence(index) for index in range(1, self.request.params.n)]
        for child in children:
            child.n_cached = child.n_computed = child.n_prompt - 1
            child.first_scheduled_s = self.sequences[0].first_scheduled_s
        self.sequences += children
        return children

    @property
    def finished(self) -> bool:
        return all(seq.finish_reason for seq in self.sequences)

    def terminal(self, reason: FinishReason, error: str | None = None) -> Finished:
        first, request, now = self.sequences[0], self.request, time.monotonic()
        first_tokens = [seq.first_token_s for seq in self.sequences if seq.first_token_s is not None]
        usage = Usage(
            n_prompt=first.n_prompt,
            n_cached=first.n_cached,
            n_output=sum(seq.n_output for seq in self.sequences),
            n_preemptions=sum(seq.n_preemptions for seq in self.sequences),
            queued_s=(first.first_scheduled_s or now) - request.arrival_s,
            ttft_s=min(first_tokens) - request.arrival_s if first_tokens else None,
            total_s=now - request.arrival_s,
        )
        prompt_logprobs = tuple(first.prompt_logprobs) if first.prompt_logprobs is not None else None
        return Finished(request.uid, reason, usage, prompt_logprobs, error)
