"""What servers are compared on. Each workload sends its own prompts, which no cache knows, and gives a few figures.

The end of a figure's name says which way is better: *_per_s more, *_s less, *_bytes less.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from app.bench import load as client
from app.bench.answer import Answer
from app.bench.load import Load, Measure
from app.bench.report import percentile, steady_rate, summarise
from app.bench.wire import Endpoint
from engine.errors import PagewellError

Figures = dict[str, Any]


class WorkloadFailed(PagewellError):
    """Requests of a workload failed; the message has the first reason."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`waves` times `load`, whose lengths are in tokens: prompt_words of each whole prompt without the prefix."""

    name: str
    says: str
    load: Load
    figures: Callable[[list[list[Answer]]], Figures]
    """From the answers of each wave."""
    waves: int = 1
    same_prefix: bool = False
    """All waves share one prefix; else each has its own."""

    def scaled(self, factor: float) -> Workload:
        """All lengths times factor, for trials of the set-up."""
        load = self.load
        return replace(
            self,
            load=replace(
                load,
                prompt_words=max(1, round(load.prompt_words * factor)),
                prefix_words=round(load.prefix_words * factor),
                output_tokens=max(1, round(load.output_tokens * factor)) if load.output_tokens > 1 else 1,
            ),
        )

    async def run(self, endpoint: Endpoint, measure: Measure, seed: str) -> Figures:
        """Raises WorkloadFailed when a request fails."""
        waves = []
        for index in range(self.waves):
            load = replace(
                self.load,
                prompt_words=measure.prompt_words(self.load.prompt_words),
                prefix_words=measure.words(self.load.prefix_words),
                seed=f"{seed}/{self.name}",
                first_index=index * self.load.n_requests,
                prefix_seed=f"{seed}/{self.name}" + ("" if self.same_prefix else f"/{index}"),
            )
            answers = await client.run(endpoint, load)
            failed = [answer.error for answer in answers if answer.error is not None]
            if failed:
                raise WorkloadFailed(f"{len(failed)} of {len(answers)} requests failed: {failed[0]}")
            if not all(answer.n_prompt and answer.n_output == load.output_tokens for answer in answers):
                counts = sorted({(answer.n_prompt, answer.n_output) for answer in answers})
                raise WorkloadFailed(f"{load.output_tokens} tokens were asked for, but these came (prompt, answer): {counts}")
            waves.append(answers)
        everything = [answer for answers in waves for answer in answers]
        return self.figures(waves) | {
            "prompt_tokens": sum(answer.n_prompt for answer in everything),
            "cached_tokens": sum(answer.n_cached for answer in everything),
            "output_tokens": sum(answer.n_output for answer in everything),
        }

    def guess_s(self, model_bytes: int, n_threads: int) -> float:
        """A guess at how long it takes: as long as llama.cpp took on two cores of 2022, times 2 / n_threads."""
        load, gigabytes, speed = self.load, model_bytes / 1e9, n_threads / 2
        prompts = load.n_requests * load.prompt_words + load.prefix_words * (load.n_requests if self.waves == 1 else 1)
        outputs = load.n_requests * load.output_tokens
        together = 1 + min(load.concurrency, 16) / 16
        return self.waves * gigabytes * (prompts / 35 + outputs / (15 * together)) / speed


def _decode(waves: list[list[Answer]]) -> Figures:
    rates = [rate for answers in waves if (rate := steady_rate(answers)) is not None]
    if not rates:
        raise WorkloadFailed("the streams never decoded together")
    gaps = [gap for answers in waves for answer in answers for gap in answer.gaps_s]
    return {"decode_tok_per_s": statistics.median(rates), "itl_p50_s": percentile(gaps, 50), "itl_p95_s": percentile(gaps, 95)}


def _prefill(waves: list[list[Answer]]) -> Figures:
    rates = [(answer.n_prompt - answer.n_cached) / answer.ttft_s for answers in waves for answer in answers]
    return {"prefill_tok_per_s": statistics.median(rates)}


def _http(waves: list[list[Answer]]) -> Figures:
    (answers,) = waves
    figures = summarise(Load(len(answers), len(answers), 0, 0, 0), answers)
    return {
        "output_tok_per_s": figures["output_tokens_per_s"],
        "ttft_p50_s": figures["ttft_s"]["p50"],
        "ttft_p95_s": figures["ttft_s"]["p95"],
        "itl_p50_s": figures["itl_s"].get("p50"),
        "itl_p95_s": figures["itl_s"].get("p95"),
        "wall_s": figures["wall_s"],
    }


def _shared(waves: list[list[Answer]]) -> Figures:
    cold, *warm = (answer.ttft_s for answers in waves for answer in answers)
    return {"ttft_cold_s": cold, "ttft_warm_s": statistics.median(warm)}


def _burst(waves: list[list[Answer]]) -> Figures:
    (answers,) = waves
    first = [answer.ttft_s for answer in answers]
    wall_s = max(answer.sent_s + answer.total_s for answer in answers)
    return {"ttft_p50_s": percentile(first, 50), "ttft_p95_s": percentile(first, 95), "wall_s": wall_s}


def _streams(n: int, waves: int) -> Workload:
    says = f"{n} stream{'s' if n > 1 else ''}, 64 tokens in, 128 out: tokens a second while all of them decode"
    return Workload(f"decode_{n}", says, Load(n, n, 64, 0, 128), _decode, waves)


WORKLOADS = (
    _streams(1, 3),
    _streams(4, 1),
    _streams(8, 1),
    _streams(16, 1),
    Workload("prefill_512", "512 tokens in, 1 out: prompt tokens over the time to it", Load(1, 1, 512, 0, 1), _prefill, 3),
    Workload("prefill_2048", "2,048 tokens in, 1 out: the same", Load(1, 1, 2048, 0, 1), _prefill, 2),
    Workload("http_8", "8 at once, 524 tokens in, 128 out each", Load(8, 8, 524, 0, 128), _http),
    Workload(
        "shared_1024", "1,024 tokens that all share, 64 of each one's own, one after the other: cold, then warm",
        Load(1, 1, 64, 1024, 4), _shared, 4, same_prefix=True,
    ),
    Workload("burst_8", "8 at once on 1,024 tokens that all share and nobody knows yet", Load(8, 8, 64, 1024, 16), _burst),
)  # fmt: skip
BY_NAME = {workload.name: workload for workload in WORKLOADS}
START = "start"
"""Figures of every start, whatever the workloads: ready_s, first_answer_s."""
MEMORY = "memory"
"""Of every server after the last workload: peak_bytes."""
ALWAYS = {
    START: "seconds from the start of a server until it is ready, and to the end of its first answer; always measured",
    MEMORY: "most memory that a server had resident; always measured",
}


def is_more_better(figure: str) -> bool:
    return figure.endswith("_per_s")


def is_compared(figure: str) -> bool:
    """Counts of tokens say what was done, not how well."""
    return figure.endswith(("_s", "_bytes"))
