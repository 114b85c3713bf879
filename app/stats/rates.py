"""Tokens and steps per second from rising counters."""

from __future__ import annotations

from collections import deque

from app.stats.frames import RatesSection
from engine.stats import EngineStats

_WINDOW_S = 1.0


class RateMeter:
    """Rates over the shortest stretch of samples that spans about a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int, int, float]] = deque()

    def add(self, stats: EngineStats) -> None:
        """Take one sample. Counters that fell belong to another engine: the meter starts again."""
        counters = stats.counters
        sample = (stats.time_s, counters.output_tokens, counters.prompt_tokens, counters.n_steps, counters.busy_s)
        samples = self._samples
        if samples and any(new < old for new, old in zip(sample, samples[-1], strict=True)):
            samples.clear()
        if samples and sample[0] == samples[-1][0]:
            return
        samples.append(sample)
        while len(samples) > 2 and samples[-1][0] - samples[1][0] >= _WINDOW_S:
            samples.popleft()

    def clear(self) -> None:
        self._samples.clear()

    def rates(self) -> RatesSection:
        if len(self._samples) < 2:
            return RatesSection()
        first, last = self._samples[0], self._samples[-1]
        span_s = last[0] - first[0]
        output_tok_s, prompt_tok_s, steps_s, busy = ((b - a) / span_s for a, b in zip(first[1:], last[1:], strict=True))
        return RatesSection(
            output_tok_s=round(output_tok_s, 1),
            prompt_tok_s=round(prompt_tok_s, 1),
            steps_s=round(steps_s, 1),
            busy=round(min(1.0, busy), 2),
        )
