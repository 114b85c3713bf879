"""Beam search: of the continuations of several beams the likeliest go on, and finished ones compete by mean log probability.

The rules are those of transformers' generate (num_beams, length_penalty, early_stopping), so that answers are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.types import FinishReason, SamplingParams, Sequence, TokenLogprob


@dataclass(frozen=True, slots=True)
class Continuation:
    """A beam and one more token. score: the sum of the log probabilities of all tokens of the answer."""

    beam: Sequence
    token_id: int
    score: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished answer. score: its summed log probability over its length to the power of length_penalty."""

    token_ids: tuple[int, ...]
    score: float
    reason: FinishReason


@dataclass(slots=True)
class Beams:
    """The search of one request. Its beams are sequences of the group; what is kept here is what they came to."""

    params: SamplingParams
    end_ids: frozenset[int]
    max_tokens: int
    finished: list[Hypothesis] = field(default_factory=list)
    """At most beam_width, the best one first."""
    _scores: dict[Sequence, float] = field(default_factory=dict)
    _offers: dict[Sequence, tuple[int, tuple[tuple[int, float], ...]]] = field(default_factory=dict)
    """Beam -> its generation, and (token id, log probability) of its likeliest continuations."""

    @staticmethod
    def n_candidates(width: int, n_end_ids: int) -> int:
        """Continuations to look at, so that beam_width of them do not end, whatever the others do."""
        return max(2, 1 + n_end_ids) * width

    def offer(self, beam: Sequence, logprob: TokenLogprob) -> None:
        """What the model gave for this beam's next token."""
        self._offers[beam] = beam.generation, logprob.top

    def has(self, beam: Sequence) -> bool:
        """Whether this beam's next token is known; not so if it was preempted since."""
        return beam in self._offers and self._offers[beam][0] == beam.generation

    def advance(self, beams: list[Sequence]) -> list[Continuation]:
        """All beams have offered: those that go on, best first; none when the search is over."""
        width, n_output = self.params.beam_width, beams[0].n_output + 1
        candidates = [
            Continuation(beam, token_id, self._scores.get(beam, 0.0) + logprob)
            for beam in beams
            for token_id, logprob in self._offers[beam][1]
        ]
        candidates.sort(key=lambda candidate: -candidate.score)
        candidates = candidates[: self.n_candidates(width, len(self.end_ids))]
        if n_output == self.max_tokens:
            ending, going_on = candidates[:width], []
        else:
            ending = [candidate for candidate in candidates[:width] if candidate.token_id in self.end_ids]
            going_on = [candidate for candidate in candidates if candidate.token_id not in self.end_ids][:width]
        if not (self.params.early_stopping and len(self.finished) == width):
            self._finish(ending, n_output)
        if not going_on or self._is_over(going_on[0].score, n_output):
            return []
        self._offers = {}
        return going_on

    def follow(self, beam: Sequence, continuation: Continuation) -> None:
        """This sequence is the continuation now."""
        self._scores[beam] = continuation.score

    def leave(self, beam: Sequence) -> None:
        self._scores.pop(beam, None)

    def _finish(self, ending: list[Continuation], n_output: int) -> None:
        for candidate in ending:
            answer = candidate.beam.token_ids[candidate.beam.n_prompt :]
            reason = FinishReason.LENGTH
            if candidate.token_id in self.end_ids:
                reason = FinishReason.STOP
            else:
                answer = [*answer, candidate.token_id]
            self.finished.append(Hypothesis(tuple(answer), self._rank(candidate.score, n_output), reason))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.params.beam_width :]

    def _is_over(self, best_score: float, n_output: int) -> bool:
        """Whether nothing that goes on can become better than the worst of enough finished answers."""
        if len(self.finished) < self.params.beam_width:
            return False
        return self.params.early_stopping or self._rank(best_score, n_output) <= self.finished[-1].score

    def _rank(self, score: float, n_output: int) -> float:
        return score / n_output**self.params.length_penalty
