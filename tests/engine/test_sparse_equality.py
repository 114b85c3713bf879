"""The equality matrix in short for models with experts and their hybrids: whatever chunks, company, hits and preemption, text is
that of transformers and log probabilities are the same to the last bit. Every case asserts that its trigger happened.
"""

from __future__ import annotations

import pytest

from tests.engine.models import sparse
from tests.engine.test_group_equality import BLOCK, Bench, Model, _preempt, logprobs, text

KINDS = {
    "mixtral": ["all tokens"],
    "qwen2_moe": ["all tokens"],
    "qwen3_moe": ["all tokens"],
    "gpt_oss": ["all tokens", "window of 9"],
    "glm4_moe": ["all tokens"],
    "ernie4_5_moe": ["all tokens"],
    "qwen3_next": ["all tokens", "state"],
    "qwen3_5_moe": ["all tokens", "state"],
    "lfm2": ["all tokens", "state"],
    "lfm2_moe": ["all tokens", "state"],
    "granitemoehybrid": ["all tokens", "state"],
}
LENGTH = 10
"""Tokens of an answer."""


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    name = request.param
    return Model(name, tmp_path_factory.mktemp("model"), *sparse.MODELS[name], KINDS[name])


def test_alone_and_in_one_batch_and_in_chunks(model: Model) -> None:
    bench = Bench(model)
    outputs = {name: bench.add(name) for name in model.prompts}
    bench.run()
    assert {name: text(output) for name, output in outputs.items()} == model.expected
    for name in ("short", "branch"):
        chunked = Bench(model, max_num_batched_tokens=19)
        assert logprobs(chunked.answer(name)) == logprobs(outputs[name])
        assert chunked.core.counters.n_steps >= 19 + len(model.prompts[name]) // 19


def test_a_prefix_that_is_found_gives_the_same(model: Model) -> None:
    bench = Bench(model)
    bench.answer("trunk", max_tokens=LENGTH)
    branch = bench.answer("branch", max_tokens=LENGTH)
    assert branch.usage.n_cached == 149 // BLOCK * BLOCK
    assert logprobs(branch) == logprobs(Bench(model).answer("branch", max_tokens=LENGTH))


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preempted_and_brought_back_gives_the_same(model: Model, mode: str) -> None:
    alone = {name: logprobs(Bench(model).answer(name, max_tokens=LENGTH)) for name in ("other", "short")}
    bench = Bench(model, preemption_mode=mode, enable_prefix_caching=False)
    outputs = {name: bench.add(name, max_tokens=LENGTH) for name in alone}
    for _ in range(6):
        bench.core.step()
    _preempt(bench.core.scheduler)
    bench.run()
    assert (bench.core.scheduler.n_swaps if mode == "swap" else bench.core.scheduler.n_recomputes) > 0
    assert {name: logprobs(output) for name, output in outputs.items()} == alone
