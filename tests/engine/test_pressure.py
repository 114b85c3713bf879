"""More answers than the KV cache has room for, on a real model: all of them finish, with the text of an unpressed run."""

from __future__ import annotations

import random

import pytest

from engine.llm import LLM
from engine.types import SamplingParams
from tests import models

N_REQUESTS, N_PROMPT, N_OUTPUT = 32, 250, 250
CACHE_TOKENS = 4000


def llm(**knobs) -> LLM:
    config = {"max_model_len": 512, "max_num_seqs": N_REQUESTS, "swap_space": 256 << 20}
    return LLM(models.smollm2(), progress=False, **config | knobs)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(100, 40_000) for _ in range(N_PROMPT)] for _ in range(N_REQUESTS)]


@pytest.fixture(scope="module")
def unpressed(prompts: list[list[int]]) -> list[list[int]]:
    return answers(llm(kv_cache_memory=1 << 30), prompts)


def answers(model: LLM, prompts: list[list[int]]) -> list[list[int]]:
    asked = SamplingParams(temperature=0, max_tokens=N_OUTPUT, ignore_eos=True)
    return [output.outputs[0].token_ids for output in model.generate(prompts, asked)]


@pytest.mark.parametrize("mode", ["auto", "recompute"])
def test_thirty_two_answers_of_500_tokens_finish_on_a_cache_of_4000(
    mode: str, prompts: list[list[int]], unpressed: list[list[int]]
) -> None:
    block_bytes = llm(kv_cache_memory=1 << 28).core.kv.groups[0].block_bytes
    pressed = llm(kv_cache_memory=CACHE_TOKENS // 16 * block_bytes, preemption_mode=mode)
    core = pressed.core
    assert len(core.kv.memories[0].pool.blocks) == CACHE_TOKENS // 16
    assert answers(pressed, prompts) == unpressed and len(unpressed[0]) == N_OUTPUT
    scheduler = core.scheduler
    if mode == "auto":  # copies take a hundredth of the time that computing takes
        assert scheduler.n_swaps > 0 and scheduler.n_recomputes == 0 and core.kv.memories[0].n_promoted > 0
        assert core.preemption.copied_bytes_per_s is not None and core.preemption.prefilled_tokens_per_s is not None
    else:
        assert scheduler.n_recomputes > 0 and scheduler.n_swaps == 0
