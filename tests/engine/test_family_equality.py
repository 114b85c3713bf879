"""The equality matrix in short, for families without a kind of memory of their own.

Whatever chunks, company, hits, preemption and forks, text is that of transformers and log probabilities are the same to the last
bit. Every case asserts that its trigger happened.
"""

from __future__ import annotations

import pytest

from kernels.cpu import launch
from tests.engine.models.dense import DENSE
from tests.engine.test_group_equality import BLOCK, Bench, Model, _preempt, logprobs, text

_ALL, _WINDOWED = "all tokens", "window of {}"
KINDS = {
    "ministral3, queries grow": [_ALL],
    "gemma2": [_ALL, _WINDOWED.format(9)],
    "phi3, long texts": [_ALL],
    "olmo2": [_ALL],
    "olmo3": [_ALL, _WINDOWED.format(9)],
    "smollm3": [_ALL],
    "granite": [_ALL],
    "starcoder2": [_WINDOWED.format(11)],
    "cohere, norms of heads": [_ALL],
    "cohere2": [_ALL, _WINDOWED.format(9)],
    "glm": [_ALL],
    "glm4": [_ALL],
    "exaone4": [_ALL, _WINDOWED.format(9)],
    "nemotron": [_ALL],
    "gemma": [_ALL],
    "seed_oss": [_ALL],
    "ernie4_5": [_ALL],
    "arcee": [_ALL],
    "stablelm": [_ALL],
}
"""Name in DENSE -> the KV groups that it has."""


class Answers:
    """A model, and what it answers to each prompt alone: the log probabilities of its greedy text."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.alone = {name: logprobs(Bench(model).answer(name)) for name in model.prompts}


@pytest.fixture(scope="module", params=KINDS)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    name = request.param
    return Answers(Model(name, tmp_path_factory.mktemp("model"), *DENSE[name], KINDS[name]))


@pytest.mark.skipif(launch.missing is not None, reason=str(launch.missing))
def test_steps_are_recorded(answers: Answers) -> None:
    """No family computes with anything but native operators."""
    assert answers.model.runner.recorded is not None


def test_in_one_batch_and_in_chunks(answers: Answers) -> None:
    model = answers.model
    for budget in (64, 19):
        bench = Bench(model, max_num_batched_tokens=budget)
        outputs = {name: bench.add(name) for name in model.prompts}
        bench.run()
        assert {name: text(output) for name, output in outputs.items()} == model.expected
        assert {name: logprobs(output) for name, output in outputs.items()} == answers.alone
        assert bench.core.counters.n_steps > sum(map(len, model.prompts.values())) // budget


def test_a_prefix_that_is_found(answers: Answers) -> None:
    bench = Bench(answers.model)
    bench.answer("trunk")
    branch = bench.answer("branch")
    assert branch.usage.n_cached == 149 // BLOCK * BLOCK
    assert logprobs(branch) == answers.alone["branch"]


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preempted_and_brought_back(answers: Answers, mode: str) -> None:
    bench = Bench(answers.model, preemption_mode=mode, enable_prefix_caching=False)
    outputs = {name: bench.add(name) for name in ("other", "short", "branch")}
    for _ in range(9):
        bench.core.step()
    _preempt(bench.core.scheduler)
    bench.run()
    assert (bench.core.scheduler.n_swaps if mode == "swap" else bench.core.scheduler.n_recomputes) == 3
    for name, output in outputs.items():
        assert logprobs(output) == answers.alone[name]


def test_choices_of_one_prompt(answers: Answers) -> None:
    bench = Bench(answers.model)
    output, most = bench.add("trunk", n=3), 0
    while bench.core.scheduler.has_work or not most:
        bench.core.step()
        most = max(most, *bench.most_shared())
    assert most >= 1
    assert [text(output, i) for i in range(3)] == [answers.model.expected["trunk"]] * 3
