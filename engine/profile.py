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

from msgspec import structs

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading import load_core
from engine.runner.prediction import device_of
from engine.types import Event, Request, SamplingParams

DECODES = (1, 16)
"""Answers at once."""
PROMPT_TOKENS = 64
"""Of each answer, where the window allows."""
PROMPT_CHUNKS = 4
"""Prefill chunks of a prompt, where the window allows."""
WARM_UP = 3
"""Steps that are not counted: they also pay for first touches of memory."""


@dataclass(slots=True)
class Case:
    """Medians over steps of one kind, in seconds."""

    name: str
    n_tokens: int
    """Of one step."""
    n_steps: int = 0
    step_s: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    """schedule, prepare, forward, head, sample, commit, emit, and the rest of the step."""
    operators: dict[str, float] = field(default_factory=dict)
    """Of forward and head, by operator and weight type; empty where steps are not recorded."""

    @property
    def host_s(self) -> float:
        """All but the model's arithmetic: the medians of the other parts together; the step's less two has the noise of all."""
        return sum(seconds for name, seconds in self.parts.items() if name not in ("forward", "head"))


async def profile(path: Path, config: EngineConfig, n_steps: int) -> list[Case]:
    """Load a model and profile n_steps decodes at each of several batch sizes, and as many prefill chunks.

    Events go to this event loop, as a server's do. Raises ModelLoadError, ConfigError.
    """
    config = structs.replace(config, device=device_of(config).type)
    loop = asyncio.get_running_loop()
    loaded = await asyncio.to_thread(load_core, path, config)
    core = loaded.make_core(lambda events: loop.call_soon_threadsafe(_drop, events))
    profiler = _Profiler(core, core.runner.config)
    try:
        return await asyncio.to_thread(profiler.run, n_steps)
    finally:
        profiler.stopped = True  # whoever interrupts waits for one step, not for all


def _drop(events: list[Event]) -> None:
    """What a server does with events is not the engine's time."""


class _Stopped(Exception):
    """Nobody waits for the result any more."""


class Parts:
    """Takes the time of a core's parts as it steps."""

    def __init__(self, core: EngineCore) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        """By part (see Case.parts), since it was cleared last."""
        step = core.runner.recorded or core.runner.eager
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

    def _timed(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return fn(*args)
            finally:
                self.seconds[name] += time.perf_counter() - began

        return timed


class _Profiler:
    def __init__(self, core: EngineCore, config: EngineConfig) -> None:
        self._core = core
        self._most_seqs = config.max_num_seqs
        self._chunk = config.token_budget
        self._parts = Parts(core)
        self._random = random.Random(0)
        self.stopped = False
        """Set from another thread: no further step is profiled."""
        self._recorded = core.runner.recorded
        for recording in self._recordings():
            recording.time_operators()

    def run(self, n_steps: int) -> list[Case]:
        cases = [self._decode(n, n_steps) for n in DECODES if self._fits(n)]
        return [*cases, self._prefill(n_steps)] if self._core.max_model_len > self._chunk else cases

    @property
    def _n_prompt(self) -> int:
        return min(PROMPT_TOKENS, self._core.max_model_len // 2)

    def _fits(self, n_seqs: int) -> bool:
        """Whether the cache has room for so many answers, of which the first ones grow while the others' prompts are read."""
        prefill_steps = n_seqs * self._n_prompt // max(1, self._chunk - n_seqs)
        n_blocks = -(-(self._n_prompt + prefill_steps + 2) // self._core.kv.block_size)
        return n_seqs <= self._most_seqs and n_seqs * n_blocks < 0.95 * len(self._core.kv.memories[0].pool.blocks)

    def _decode(self, n_seqs: int, n_steps: int) -> Case:
        scheduler = self._core.scheduler

        def answers() -> None:
            """Begin them; those that fill the window begin anew, and all where one lost its blocks to the others."""
            while len(scheduler.running) < n_seqs or any(seq.n_wanted > 1 for seq in scheduler.running):
                if any(seq.n_preemptions for seq in scheduler.waiting):
                    self._end_all()
                for _ in range(n_seqs - len(self._core.groups)):
                    self._add(self._n_prompt)
                self._core.step()

        return self._measure(Case(f"decode, {n_seqs} at once", n_seqs), n_steps, answers)

    def _prefill(self, n_steps: int) -> Case:
        n_chunks = min(PROMPT_CHUNKS, (self._core.max_model_len - 1) // self._chunk)

        def whole_chunk() -> None:
            """A token is left for after the last chunk, so that no chunk draws."""
            if not any(group.sequences[0].n_wanted > self._chunk for group in self._core.groups.values()):
                self._end_all()
                self._add(n_chunks * self._chunk + 1)

        return self._measure(Case(f"prefill, chunks of {self._chunk}", self._chunk), n_steps, whole_chunk)

    def _measure(self, case: Case, n_steps: int, before_step: Callable[[], None]) -> Case:
        steps: dict[str, list[float]] = defaultdict(list)
        operators: dict[str, list[float]] = defaultdict(list)
        for _ in range(WARM_UP):
            before_step()
            self._core.step()
        for _ in range(n_steps):
            if self.stopped:
                raise _Stopped
            before_step()
            self._parts.seconds.clear()
            before = self._operators()
            began = time.perf_counter()
            self._core.step()
            steps["step"].append(time.perf_counter() - began)
            for name, seconds in self._parts.seconds.items():
                steps[name].append(seconds)
            steps["rest"].append(steps["step"][-1] - sum(self._parts.seconds.values()))
            for name, seconds in self._operators().items():
                operators[name].append(seconds - before[name])
        self._end_all()
        case.n_steps, case.step_s = n_steps, statistics.median(steps.pop("step"))
        case.parts = {name: statistics.median(seconds) for name, seconds in steps.items()}
        case.operators = {name: median for name, seconds in operators.items() if (median := statistics.median(seconds)) > 0}
        return case

    def _add(self, n_prompt: int) -> None:
        """A greedy answer to a prompt that no cache knows."""
        prompt = [self._random.randrange(self._core.tokenizer.vocab_size) for _ in range(n_prompt)]
        self._core.add(Request("profile", prompt, SamplingParams(temperature=0, ignore_eos=True)))

    def _end_all(self) -> None:
        for uid in self._core.groups:
            self._core.abort(uid)
        self._core.step()

    def _recordings(self) -> tuple[Any, ...]:
        return self._recorded.recordings if self._recorded is not None else ()

    def _operators(self) -> dict[str, float]:
        """Seconds of all steps so far."""
        total: dict[str, float] = {}
        for recording in self._recordings():
            for name, seconds in recording.seconds.items():
                total[name] = total.get(name, 0.0) + seconds
        return total
