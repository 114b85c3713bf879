"""Loads a model in a process of its own, has it do all that takes memory, and says what it took: one line of JSON.

    python -m tests.engine.runner.peak WARM_UP_MODEL MODEL CONFIG_AS_JSON

What the process takes with no model in it (Python, torch, the operators' code and threads) is measured after another model was
loaded, used and forgotten, and is left out.
"""

from __future__ import annotations

import ctypes
import gc
import json
import random
import sys
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading import load_core
from engine.types import Event, Finished, Request, SamplingParams

_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"
_rng = random.Random(5)


def resident(field: str) -> int:
    """VmRSS or VmHWM, its peak, in bytes."""
    (line,) = [line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) << 10


def settled() -> int:
    """What is resident once all that was given back is gone; the peak begins here."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    return resident("VmRSS")


def write_everywhere(core: EngineCore) -> None:
    """Each block of the cache and each slot of host memory, as a long life of requests would."""
    planes = [plane for storage in core.runner.kv.storages for plane in storage.planes]
    planes += [plane for of_group in (core.runner.host._planes if core.runner.host else ()) for plane in of_group]
    for plane in planes:
        plane.view(torch.uint8).fill_(0)


def answer(core: EngineCore, events: list[Event], n_vocab: int) -> None:
    """The longest prompt, the largest batch, and everything beside the token that can be asked for with one."""
    window, n_seqs = core.max_model_len, core.runner.config.max_num_seqs

    def tokens(n: int) -> list[int]:
        return [_rng.randrange(n_vocab) for _ in range(n)]

    plain = SamplingParams(max_tokens=4, ignore_eos=True)
    every = SamplingParams(
        max_tokens=24, n=min(2, n_seqs), ignore_eos=True, logprobs=5, repetition_penalty=1.2, frequency_penalty=0.1, top_p=0.9,
        top_k=1000, min_p=0.01,
    )  # fmt: skip
    asked = SamplingParams(max_tokens=2, ignore_eos=True, logprobs=5, prompt_logprobs=5)
    rounds = [[(window - 8, plain)], [(8, every)] * n_seqs, [(8, every), (8, plain)] * n_seqs, [(min(window - 8, 300), asked)]]
    for requests in rounds:
        for n, params in requests:
            core.add(Request("", tokens(n), params))
        core.step()
        while core.scheduler.has_work:
            core.step()
    ended = [event for event in events if isinstance(event, Finished)]
    assert len(ended) == sum(map(len, rounds)) and not any(event.error for event in ended)


def use(model: Path, config: EngineConfig) -> dict[str, int]:
    events: list[Event] = []
    loaded = load_core(model, config)
    loading = resident("VmHWM")
    core = loaded.make_core(events.extend)
    write_everywhere(core)
    answer(core, events, loaded.info.n_vocab)
    needs = core.runner.budget.needs
    return {name: getattr(needs, name) for name in (*needs.__dataclass_fields__, "total")} | {"loading": loading}


def main(warm_up: str, model: str, config: str) -> None:
    knobs = EngineConfig(**json.loads(config))
    use(Path(warm_up), EngineConfig(device="cpu", kv_cache_memory=1 << 20, swap_space=1 << 16, threads=knobs.threads))
    before = settled()
    found = use(Path(model), knobs)
    found |= {"loading": found["loading"] - before, "measured": resident("VmHWM") - before}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
