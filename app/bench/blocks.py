"""What the size of a block changes: speeds, the host's part of a step, what is found again of a day's mix, what stays empty."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from app.bench import replay
from engine.config import EngineConfig
from engine.kv.blocks import PROTECTED_SHARE
from engine.loading import load_core
from engine.profile import WARM_UP, Parts
from engine.types import Request, SamplingParams

CACHES = (2, 4)
"""Sizes of the cache in the replay, in longest calls."""
WARM_UP_TOKENS = 64


@dataclass(slots=True)
class Speeds:
    """Of one size, one value for each round."""

    block_size: int
    prefill_tok_s: list[float] = field(default_factory=list)
    decode_tok_s: list[float] = field(default_factory=list)
    """Of one answer, behind the prompt."""
    prefill_host_s: list[float] = field(default_factory=list)
    decode_host_s: list[float] = field(default_factory=list)
    """Medians over steps of all but the model's arithmetic."""
    admit_s: list[float] = field(default_factory=list)
    """Until a prompt that is known is found and has its blocks."""

    def result(self, first: Speeds) -> dict[str, Any]:
        """Medians, and those of the ratios to another size's in the same round."""
        names = [name for name in self.__slots__ if name != "block_size"]
        values = {name: getattr(self, name) for name in names}
        ratios = {name: [a / b for a, b in zip(values[name], getattr(first, name), strict=True)] for name in names}
        return {
            "block_size": self.block_size,
            **{name: statistics.median(each) for name, each in values.items()},
            "ratios": {name: statistics.median(each) for name, each in ratios.items()},
            "rounds": values,
        }


class _Step(NamedTuple):
    decodes: bool
    seconds: float
    host_s: float
    schedule_s: float


class _Run:
    """One core that answers one request after the other."""

    def __init__(self, path: Path, config: EngineConfig) -> None:
        self.core = load_core(path, config).make_core(lambda events: None)
        self._parts = Parts(self.core)

    def answer(self, prompt: list[int], n_tokens: int) -> list[_Step]:
        counters, parts = self.core.counters, self._parts.seconds
        n_before, steps = counters.output_tokens, []
        self.core.add(Request("bench", prompt, SamplingParams(temperature=0, ignore_eos=True, max_tokens=n_tokens)))
        while not steps or self.core.scheduler.has_work:
            decodes = counters.output_tokens > n_before
            parts.clear()
            began = time.perf_counter()
            self.core.step()
            seconds = time.perf_counter() - began
            steps.append(_Step(decodes, seconds, seconds - parts["forward"] - parts["head"], parts["schedule"]))
        return steps


def speeds(
    path: Path,
    config: EngineConfig,
    sizes: tuple[int, ...],
    n_prompt: int,
    n_decodes: int,
    rounds: int,
    say: Callable[[str], None],
) -> list[Speeds]:
    """Each round loads the model anew with each size, in turn. Raises ModelLoadError, ConfigError."""
    results = [Speeds(size) for size in sizes]
    rng = random.Random(0)
    for index in range(rounds):
        for one in results[index % len(sizes) :] + results[: index % len(sizes)]:
            run = _Run(path, structs.replace(config, block_size=one.block_size))
            n_vocab = run.core.tokenizer.vocab_size
            prompt = [rng.randrange(n_vocab) for _ in range(n_prompt)]
            run.answer([rng.randrange(n_vocab) for _ in range(WARM_UP_TOKENS)], WARM_UP)
            steps = run.answer(prompt, n_decodes)
            prefills, decodes = ([step for step in steps if step.decodes is kind] for kind in (False, True))
            one.prefill_tok_s.append(n_prompt / sum(step.seconds for step in prefills))
            one.decode_tok_s.append(1 / statistics.median(step.seconds for step in decodes))
            one.prefill_host_s.append(statistics.median(step.host_s for step in prefills))
            one.decode_host_s.append(statistics.median(step.host_s for step in decodes))
            n_cached = run.core.counters.cached_tokens
            one.admit_s.append(run.answer([*prompt, 0], 1)[0].schedule_s)
            assert run.core.counters.cached_tokens == n_cached + n_prompt // one.block_size * one.block_size
            say(
                f"round {index + 1}, blocks of {one.block_size}: prefill {one.prefill_tok_s[-1]:.0f} tok/s, "
                f"decode {one.decode_tok_s[-1]:.1f} tok/s"
            )
    return results


def found(size: int, turns: int, seed: int) -> dict[str, Any]:
    """Of the replayed mix: shares of prompt tokens that are found again, by size of the cache in tokens, and of empty room."""
    calls = replay.mix(seed, turns)
    longest = max(len(call.prompt) + len(call.answer) for call in calls)
    shares = {}
    for factor in CACHES:
        n_tokens = longest * factor
        shares[n_tokens] = replay.replay(calls, -(-n_tokens // size), PROTECTED_SHARE, size).all.share
    return {"block_size": size, "found": shares, "waste": replay.waste(calls, size)}
