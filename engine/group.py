"""RequestGroup: one request with its sequences, from one shared prefill to one terminal event."""

from __future__ import annotations

import time
from dataclasses import replace

from engine.beams import Beams, Continuation
from engine.text.output import OutputText
from engine.text.tokenizer import Tokenizer
from engine.types import Delta, Finished, FinishReason, Request, SamplingParams, Sequence, Usage


class RequestGroup:
    """The sequences of one request: n or best_of choices, or the beams of a search. The first one computes the prompt; the
    others are forks of it, or of each other.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer, *, seed: int, max_model_len: int) -> None:
        self.request = request
        self._tokenizer = tokenizer
        self._seed = seed
        params = request.params
        room = max_model_len - len(request.prompt_token_ids)
        self._max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        self._end_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else tokenizer.end_ids)
        self.beams = Beams(params, self._end_ids, self._max_tokens) if params.beam_width else None
        self.n_choices = 1 if self.beams else params.best_of or params.n
        """Sequences that are forked from the prompt."""
        self._computed = replace(request, params=self._computed_params(params))
        self._held: list[Delta] = []
        self._n_made = 0
        self.first = self._sequence()
        self.sequences = [self.first]
        """Those that are part of the answer; beams that lost are gone."""

    def _computed_params(self, params: SamplingParams) -> SamplingParams:
        """What the sequences themselves are asked for."""
        if self.beams is not None:
            n_candidates = self.beams.n_candidates(params.beam_width, len(self._end_ids))
            return replace(params, temperature=0.0, logprobs=n_candidates)
        if self.holds_back:
            return replace(params, logprobs=params.logprobs or 0)
        return params

    @property
    def holds_back(self) -> bool:
        """Whether it is known only at the end which of the sequences are returned."""
        params = self.request.params
        return params.best_of is not None and params.best_of > params.n

    def _sequence(self) -> Sequence:
        params, index = self.request.params, self._n_made
        self._n_made += 1
        seq = Sequence(
            request=self._computed,
            index=index,
            token_ids=list(self.request.prompt_token_ids),
            n_prompt=len(self.request.prompt_token_ids),
            seed=self._seed,
            max_tokens=self._max_tokens,
            end_ids=self._end_ids,
            text=self._text(),
        )
        if params.prompt_logprobs is not None and index == 0:
            seq.prompt_logprobs = [None]  # the first token has nothing before it
        return seq

    def _text(self) -> OutputText:
        params = self.request.params
        return OutputText(
            self._tokenizer,
            stop=params.stop,
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
        )

    def fork(self) -> list[Sequence]:
        """The remaining choices, once the first has computed the prompt; the caller shares its blocks with them.

        Each computes the prompt's last token again, so that its first draw is an ordinary decode.
        """
        children = [self._sequence() for _ in range(1, self.n_choices)]
        for child in children:
            child.n_cached = child.n_computed = child.n_prompt - 1
            child.first_scheduled_s = self.first.first_scheduled_s
        self.sequences += children
        return children

    def fork_beam(self, continuation: Continuation) -> Sequence:
        """A beam that goes on as another one does, but for the last token; the caller shares its blocks with it."""
        parent, child = continuation.beam, self._sequence()
        child.token_ids = [*parent.token_ids, continuation.token_id]
        child.n_cached, child.n_computed = parent.n_cached, parent.n_computed
        child.first_scheduled_s, child.first_token_s = parent.first_scheduled_s, parent.first_token_s
        self.sequences.append(child)
        return child

    def hold(self, delta: Delta) -> None:
        """Keep part of an answer that may not be returned."""
        self._held.append(delta)

    def chosen(self) -> list[Delta]:
        """The answers that are returned, where that is known only now; best first."""
        params = self.request.params
        if self.beams is not None:
            return [self._beam_delta(index) for index in range(min(params.n, len(self.beams.finished)))]
        if not self.holds_back:
            return []
        ranked = sorted(self.sequences, key=lambda seq: -seq.logprob_sum / max(1, seq.n_output))[: params.n]
        places = {seq.index: place for place, seq in enumerate(ranked)}
        return [
            Delta(
                delta.uid, places[delta.index], delta.text, delta.token_ids,
                delta.logprobs if params.logprobs is not None else None, delta.finish_reason, delta.stop_reason,
            )
            for delta in self._held
            if delta.index in places
        ]  # fmt: skip

    def _beam_delta(self, index: int) -> Delta:
        hypothesis, text = self.beams.finished[index], self._text()
        words = "".join(text.push(token_id) for token_id in hypothesis.token_ids) + text.finish()
        return Delta(self.request.uid, index, words, hypothesis.token_ids, finish_reason=hypothesis.reason)

    @property
    def finished(self) -> bool:
        return all(seq.finish_reason for seq in self.sequences)

    @property
    def _n_output(self) -> int:
        if self.beams is not None:
            return sum(len(hypothesis.token_ids) for hypothesis in self.beams.finished[: self.request.params.n])
        return sum(seq.n_output for seq in self.sequences)

    def terminal(self, reason: FinishReason, error: str | None = None) -> Finished:
        first, request, now = self.first, self.request, time.monotonic()
        first_tokens = [seq.first_token_s for seq in self.sequences if seq.first_token_s is not None]
        usage = Usage(
            n_prompt=first.n_prompt,
            n_cached=first.n_cached,
            n_output=self._n_output,
            n_preemptions=sum(seq.n_preemptions for seq in self.sequences),
            queued_s=(first.first_scheduled_s or now) - request.arrival_s,
            ttft_s=min(first_tokens) - request.arrival_s if first_tokens else None,
            total_s=now - request.arrival_s,
        )
        prompt_logprobs = tuple(first.prompt_logprobs) if first.prompt_logprobs is not None else None
        return Finished(request.uid, reason, usage, prompt_logprobs, error)
