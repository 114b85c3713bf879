"""Answers as the clients see them: exact token counts, latencies, and those that ended a few seconds ago.

Samples come four times a second, so a short answer can begin and end between two of them; the engine's events miss
none. All times are time.monotonic().
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from app.stats.frames import LatencySection
from engine.types import Delta, Event, Finished, FinishReason, Started

KEEP_ENDED_S = 8.0
"""How long an answer that ended stays in the feed."""
LATENCY_WINDOW_S = 60.0
MAX_LATENCIES = 4096
"""Percentiles are of so many newest values at most: at 1,300 tokens a second, the gaps of the last three seconds. The
whole minute's would take longer to sort, four times a second, than they are worth."""

_END_STATES = {FinishReason.ABORT: "aborted", FinishReason.ERROR: "failed"}


@dataclass(slots=True)
class Answer:
    """One choice of a request, from its events."""

    uid: int
    index: int
    n_prompt: int
    n_cached: int
    arrived_s: float
    model: str = ""
    n_output: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float | None = None
    state: str = "running"

    @property
    def tok_s(self) -> float:
        """Output tokens per second since the first token."""
        if self.n_output < 2 or self.last_token_s is None or self.last_token_s == self.first_token_s:
            return 0.0
        return (self.n_output - 1) / (self.last_token_s - self.first_token_s)


@dataclass(slots=True)
class _Latencies:
    """(time, seconds): the newest MAX_LATENCIES of the last minute."""

    values: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_LATENCIES))

    def percentiles(self, now: float) -> tuple[float, float] | tuple[None, None]:
        """p50 and p95 by nearest rank."""
        while self.values and self.values[0][0] < now - LATENCY_WINDOW_S:
            self.values.popleft()
        if not self.values:
            return None, None
        ordered = sorted(value for _, value in self.values)
        p50, p95 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.95))
        return round(p50, 4), round(p95, 4)


class Answers:
    """An observer of the engine's events."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._live: dict[int, dict[int, Answer]] = {}
        self._ended: deque[Answer] = deque()
        self._ttft = _Latencies()
        self._itl = _Latencies()

    def observe(self, event: Event, model: str = "") -> None:
        """Take one event of a model's engine, on the event loop."""
        now = self._clock()
        match event:
            case Started():
                first = Answer(event.uid, 0, event.n_prompt, event.n_cached, now - event.queued_s, model)
                self._live[event.uid] = {0: first}
            case Delta():
                self._token(event, now)
            case Finished():
                self._finish(event, now, model)

    def _token(self, event: Delta, now: float) -> None:
        choices = self._live.get(event.uid)
        if choices is None:
            return
        answer = choices.get(event.index)
        if answer is None:
            first = choices[0]
            answer = choices[event.index] = Answer(
                event.uid, event.index, first.n_prompt, first.n_cached, first.arrived_s, first.model
            )
        n_new = len(event.token_ids)
        if n_new:
            if answer.last_token_s is None:
                answer.first_token_s = now
                if all(other is answer or other.first_token_s is None for other in choices.values()):
                    self._ttft.values.append((now, now - answer.arrived_s))
            else:
                self._itl.values.append((now, (now - answer.last_token_s) / n_new))
            answer.last_token_s = now
            answer.n_output += n_new
        if event.finish_reason is not None:
            self._end(answer, event.finish_reason, now)

    def _finish(self, event: Finished, now: float, model: str) -> None:
        usage = event.usage
        queued = Answer(event.uid, 0, usage.n_prompt, usage.n_cached, now - usage.total_s, model, usage.n_output)
        for answer in self._live.pop(event.uid, {0: queued}).values():
            if answer.ended_s is None:
                self._end(answer, event.reason, now)

    def _end(self, answer: Answer, reason: FinishReason, now: float) -> None:
        answer.state = _END_STATES.get(reason, "completed")
        answer.ended_s = now
        self._ended.append(answer)

    def ended(self) -> Iterator[Answer]:
        """Those that ended within KEEP_ENDED_S, oldest first."""
        horizon = self._clock() - KEEP_ENDED_S
        while self._ended and self._ended[0].ended_s < horizon:
            self._ended.popleft()
        return iter(tuple(self._ended))

    def latency(self) -> LatencySection:
        now = self._clock()
        ttft_p50, ttft_p95 = self._ttft.percentiles(now)
        itl_p50, itl_p95 = self._itl.percentiles(now)
        return LatencySection(ttft_p50_s=ttft_p50, ttft_p95_s=ttft_p95, itl_p50_s=itl_p50, itl_p95_s=itl_p95)

    def forget_live(self, model: str) -> None:
        """The model's engine is gone: whatever still ran failed with it."""
        now = self._clock()
        gone = [uid for uid, choices in self._live.items() if any(answer.model == model for answer in choices.values())]
        for uid in gone:
            for answer in self._live.pop(uid).values():
                if answer.ended_s is None:
                    self._end(answer, FinishReason.ERROR, now)
