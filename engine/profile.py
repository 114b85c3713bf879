"""Where a step's time goes: the host's parts, and each native operator; measured by running an engine's own steps."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.loading import load_core
from engine.types import Event, Request, SamplingParams

DECODES = (1, 16)
"""Answers at once."""
PROMPT_TOKENS = 64
WARM_UP = 3
"""Steps that are not counted: they also pay for first touches of memory."""


@dataclass(slots=True)
class Case:
    """Medians over steps of one kind, in seconds."""

    name: str
    n_steps: int
    n_tokens: int
    """Of one step."""
    step_s: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    """schedule, prepare, forward, head, sample, commit, emit, and the rest of the step."""
    operators: dict[str, float] = field(default_factory=dict)
    """Of forward and head, by operator and weight type; empty where steps are not recorded."""

    @property
    def host_s(self) -> float:
        """All but the model's arithmetic, and the draw, which is arithmetic too in part."""
        return self.step_s - self.parts["forward"] - self.parts["head"]


async def profile(path: Path, config: EngineConfig, n_steps: int) -> list[Case]:
    """Load a model and profile decodes at several batch sizes and prefill chunks. Raises ModelLoadError, ConfigError.

    Events go to this event loop, as a server's do.
    """
    loop = asyncio.get_running_loop()
    loaded = await asyncio.to_thread(load_core, path, config)
    core = loaded.make_core(lambda events: loop.call_soon_threadsafe(_drop, events))
    return await asyncio.to_thread(_Profiler(core, config).run, n_steps)


def _drop(events: list[Event]) -> None:
    """What a server does with events is not the engine's time."""


class _Profiler:
    """Takes the time of a core's parts as it steps."""

    def __init__(self, core: EngineCore, config: EngineConfig) -> None:
        self._core = core
        self._most_seqs = config.max_num_seqs
        self._seconds: dict[str, float] = defaultdict(float)
        """Of the step under way."""
        self._random = random.Random(0)
        self._recorded = core.runner.recorded
        step = self._recorded or core.runner.eager
        for name, owner, method in (
            ("schedule", core.scheduler, "schedule"),
            ("prepare", step, "prepare"),
            ("forward", step, "forward"),
            ("head", step, "logits"),
            ("sample", core.runner.sampler, "sample"),
            ("commit", core, "_commit"),
            ("emit", core, "_emit"),
        ):
            setattr(owner, method, self._timed(name, getattr(owner, method)))
        for recording in self._recordings():
            recording.time_operators()

    def run(self, n_steps: int) -> list[Case]:
        return [*(self._decode(n, n_steps) for n in DECODES if n <= self._most_seqs), self._prefill(n_steps)]

    def _decode(self, n_seqs: int, n_steps: int) -> Case:
        uids = [self._add(PROMPT_TOKENS, WARM_UP + n_steps + 2) for _ in range(n_seqs)]
        running = self._core.scheduler.running
        while len(running) < n_seqs or any(seq.n_wanted > 1 for seq in running):
            self._core.step()
        case = self._measure(Case(f"decode, {n_seqs} at once", n_steps, n_seqs))
        self._end(uids)
        return case

    def _prefill(self, n_steps: int) -> Case:
        """Whole chunks of one long prompt, as many as the window has."""
        chunk, window = self._core.scheduler.token_budget, self._core.max_model_len
        n_chunks = min(n_steps + WARM_UP, (window - 1) // chunk)
        if n_chunks <= WARM_UP:
            raise ConfigError(f"A window of {window} tokens has no room for prefill chunks of {chunk}.", "Raise --max-model-len.")
        uid = self._add(n_chunks * chunk + 1 if n_chunks * chunk + 1 < window else n_chunks * chunk, 1)
        case = self._measure(Case(f"prefill, chunks of {chunk}", n_chunks - WARM_UP, chunk))
        self._end([uid])
        return case

    def _add(self, n_prompt: int, max_tokens: int) -> int:
        """A prompt that no cache knows."""
        prompt = [self._random.randrange(self._core.tokenizer.vocab_size) for _ in range(n_prompt)]
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        return self._core.add(Request("profile", prompt, params))

    def _end(self, uids: list[int]) -> None:
        for uid in uids:
            self._core.abort(uid)
        self._core.step()

    def _measure(self, case: Case) -> Case:
        for _ in range(WARM_UP):
            self._core.step()
        steps: dict[str, list[float]] = defaultdict(list)
        operators: dict[str, list[float]] = defaultdict(list)
        for _ in range(case.n_steps):
            self._seconds.clear()
            before = self._operators()
            began = time.perf_counter()
            self._core.step()
            whole = time.perf_counter() - began
            steps["step"].append(whole)
            # A step's events go out in a part of their own, whoever sends them.
            for name, seconds in self._seconds.items():
                steps[name].append(seconds)
            steps["rest"].append(whole - sum(self._seconds.values()))
            for name, seconds in self._operators().items():
                operators[name].append(seconds - before[name])
        case.step_s = statistics.median(steps.pop("step"))
        case.parts = {name: statistics.median(seconds) for name, seconds in steps.items()}
        case.operators = {name: median for name, seconds in operators.items() if (median := statistics.median(seconds)) > 0}
        return case

    def _timed(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return fn(*args)
            finally:
                self._seconds[name] += time.perf_counter() - began

        return timed

    def _recordings(self) -> tuple[Any, ...]:
        return self._recorded.recordings if self._recorded is not None else ()

    def _operators(self) -> dict[str, float]:
        """Seconds of all steps so far."""
        total: dict[str, float] = {}
        for recording in self._recordings():
            for name, seconds in recording.seconds.items():
                total[name] = total.get(name, 0.0) + seconds
        return total
