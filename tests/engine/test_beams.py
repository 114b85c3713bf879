"""Beam search: answers equal to transformers' on a tiny model, whatever the company, the chunks and the pressure."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.outputs import RequestOutput
from engine.runner.runner import ModelRunner
from engine.scheduler import _Draft
from engine.types import Event, Request, SamplingParams
from engine.weights.loader import open_checkpoint
from tests.engine.fake_runner import ByteTokenizer
from tests.engine.models import tiny

END_IDS = tuple(range(30, 42))
MAX_TOKENS = 14
N_VOCAB = 257


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("beams")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    return tiny.saved(folder, "llama", vocab_size=N_VOCAB, max_position_embeddings=96)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(50, 250) for _ in range(n)] for n in (3, 15, 16, 17, 40)]


class Searches:
    """A core over the tiny model, with room for n_blocks blocks."""

    def __init__(self, folder: Path, n_blocks: int = 200, **knobs: Any) -> None:
        config = EngineConfig(
            device="cpu",
            dtype="float32",
            kernel_precision="exact",
            max_num_seqs=32,
            debug_checks=True,
            swap_space=1 << 20,
            **knobs,
        )
        self.runner = ModelRunner(config, open_checkpoint(folder))
        (group,) = self.runner.kv_groups
        self.runner.kv_groups = (structs.replace(group, n_blocks=n_blocks),)
        self.core = EngineCore(config, self.runner, ByteTokenizer(), self._receive)
        self.outputs: dict[int, RequestOutput] = {}
        self.most_shared = 0

    def _receive(self, events: list[Event]) -> None:
        for event in events:
            self.outputs[event.uid].add(event)

    def run(self, prompts: list[list[int]], params: SamplingParams) -> list[list[list[int]]]:
        """[prompt][choice] -> token ids"""
        uids = [self.core.add(Request("", prompt, params)) for prompt in prompts]
        for uid, prompt in zip(uids, prompts, strict=True):
            self.outputs[uid] = RequestOutput.empty(prompt, params.n)
        self.core.step()
        while self.core.scheduler.has_work:
            self.most_shared = max(self.most_shared, sum(block.refs > 1 for block in self.core.kv.memories[0].pool.blocks))
            self.core.step()
        assert self.core.kv.memories[0].pool.n_free == len(self.core.kv.memories[0].pool.blocks) and not self.core.groups
        assert all(self.outputs[uid].error is None for uid in uids)
        return [[choice.token_ids for choice in self.outputs[uid].outputs] for uid in uids]


def expected(model: Any, prompt: list[int], params: SamplingParams) -> list[list[int]]:
    with torch.inference_mode():
        found = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            num_beams=params.beam_width,
            num_return_sequences=params.n,
            max_new_tokens=params.max_tokens,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            eos_token_id=list(params.stop_token_ids),
            pad_token_id=0,
        )
    answers = []
    for row in found[:, len(prompt) :].tolist():
        end = next((i for i, token_id in enumerate(row) if token_id in params.stop_token_ids), len(row))
        answers.append(row[:end])
    return answers


def search(width: int, **settings: Any) -> SamplingParams:
    defaults = {"n": width, "max_tokens": MAX_TOKENS, "stop_token_ids": END_IDS, "ignore_eos": True}
    return SamplingParams(beam_width=width, **defaults | settings)


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0, -1.0])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_answers_are_those_of_transformers(
    width: int, length_penalty: float, early_stopping: bool, folder: Path, oracle: Any, prompts: list[list[int]]
) -> None:
    params = search(width, length_penalty=length_penalty, early_stopping=early_stopping)
    want = [expected(oracle, prompt, params) for prompt in prompts]
    searches = Searches(folder)
    assert searches.run(prompts, params) == want
    lengths = {len(answer) for answers in want for answer in answers}
    assert width == 1 or searches.most_shared > 2
    assert width == 1 or length_penalty == 2.0 or len(lengths) > 2, "no answer ended before the others"


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_beams_that_give_way_to_others_come_back(mode: str, folder: Path, oracle: Any, prompts: list[list[int]]) -> None:
    params = search(4)
    pressed = Searches(folder, 18, preemption_mode=mode, max_num_batched_tokens=32)
    assert pressed.run(prompts, params) == [expected(oracle, prompt, params) for prompt in prompts]
    assert pressed.core.scheduler.n_preemptions > 0


def test_a_beam_that_gives_way_while_it_waits_for_the_others_offers_again(
    folder: Path, oracle: Any, prompts: list[list[int]]
) -> None:
    params, prompt = search(4), prompts[-1]
    searches = Searches(folder, max_num_batched_tokens=32, enable_prefix_caching=False)
    core, scheduler = searches.core, searches.core.scheduler
    uid = core.add(Request("", prompt, params))
    searches.outputs[uid] = RequestOutput.empty(prompt, params.n)
    while uid not in core.groups or core.groups[uid].sequences[0].n_output < 5:
        core.step()
    group = core.groups[uid]
    slow, waiting = group.sequences[:2]
    core.preemption._mode = "recompute"
    scheduler._preempt(_Draft(0), slow)
    core.step()
    assert 0 < slow.n_computed < slow.n_prompt and group.beams.has(waiting) and waiting.n_wanted == 0
    core.preemption._mode = "swap"
    scheduler._preempt(_Draft(0), waiting)
    assert waiting.put_aside is not None and not group.beams.has(waiting)
    for _ in range(100):
        core.step()
    assert not core.groups
    assert [choice.token_ids for choice in searches.outputs[uid].outputs] == expected(oracle, prompt, params)
