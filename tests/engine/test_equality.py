"""The equality matrix on real weights: law f (greedy) and law h (seeds). Every case asserts that its trigger happened.

The weights are loaded once per model, precision and format of its cache; for exact products dequantised so that steps are
quick, and once more as the file has them. Each case gets a core of its own over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading import load_core
from engine.outputs import RequestOutput
from engine.runner.runner import ModelRunner
from engine.text.tokenizer import Tokenizer
from engine.types import Event, Request, SamplingParams, TokenLogprob
from kernels.cpu import launch
from tests import models, oracle
from tests.engine.fewer_blocks import FewerBlocks

N_TOKENS = 12
DTYPES = {"auto": torch.float16, "int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}
"""Of the KV cache, where it is not exact."""
PASSAGE = (
    "A lighthouse keeper writes one line in the log each evening. Monday: calm sea, two fishing boats. Tuesday: fog until noon. "
    "Wednesday: a storm from the west, the lamp burned all day. Thursday: the supply boat brought oil, bread and letters."
)
PROMPTS = {
    "capital": "The capital of France is",
    "code": "def add(a, b):\n    return",
    "emoji": "日本の首都は 🙂👩‍👩‍👧",
    "passage": PASSAGE + " Friday:",
}


def load(path: Path, quantization: str, precision: str, kv_cache_dtype: str) -> tuple[ModelRunner, Tokenizer]:
    config = EngineConfig(
        max_model_len=256,
        max_num_seqs=16,
        kv_cache_memory=64 << 20,
        swap_space=64 << 20,
        kv_cache_dtype=kv_cache_dtype,
        quantization=quantization,
        kernel_precision=precision,
    )
    loaded = load_core(path, config)
    return loaded.make_core(lambda events: None).runner, loaded.tokenizer


class Loaded:
    """One model's weights and tokenizer, and its greedy answers by transformers.

    transformers rounds no activations, keys or values: where that is done, answers are those to each prompt alone, whole and
    uncached. Dense weights would be multiplied exactly, so fast products get them as the file has them.
    """

    def __init__(self, path: Path, precision: str, kv_cache_dtype: str) -> None:
        self.path, self.formats = path, (precision, kv_cache_dtype)
        self.runner, self.tokenizer = load(path, "none" if precision == "exact" else "auto", *self.formats)
        self.prompts = {name: self.tokenizer.encode(text) for name, text in PROMPTS.items()}
        if self.formats == ("exact", "auto"):
            assert self.runner.kv_dtype == torch.float32
            self.expected = {name: oracle.greedy(path, ids, N_TOKENS) for name, ids in self.prompts.items()}
        else:
            assert self.runner.kv_dtype == DTYPES[kv_cache_dtype]
            self.expected = {name: Bench(self).answer(name) for name in self.prompts}


class Bench:
    """A core stepped by hand over a loaded model."""

    def __init__(self, loaded: Loaded, *, n_blocks: int | None = None, **knobs) -> None:
        config = EngineConfig(**{"max_num_seqs": 16, "debug_checks": True, **knobs})
        runner = loaded.runner
        if n_blocks is not None:
            runner = FewerBlocks(runner, {"all": n_blocks, "window": n_blocks}, (n_blocks - 1) * runner.block_size)
        self.loaded = loaded
        self.core = EngineCore(config, runner, loaded.tokenizer, self._receive)
        self.outputs: dict[int, RequestOutput] = {}
        self.most_running = self.most_shared = 0

    def _receive(self, events: list[Event]) -> None:
        for event in events:
            self.outputs[event.uid].add(event)

    def add(self, name: str, **params) -> RequestOutput:
        settings = SamplingParams(**({"temperature": 0.0, "max_tokens": N_TOKENS, "ignore_eos": True} | params))
        request = Request(name, self.loaded.prompts[name], settings)
        uid = self.core.add(request)
        output = self.outputs[uid] = RequestOutput.empty(request.prompt_token_ids, settings.n)
        return output

    def run(self) -> None:
        self.core.step()
        while self.core.scheduler.has_work:
            self.most_running = max(self.most_running, len(self.core.scheduler.running))
            self.most_shared = max(self.most_shared, sum(block.refs > 1 for block in self.core.kv.memories[0].pool.blocks))
            self.core.step()
        assert self.core.kv.memories[0].pool.n_free == len(self.core.kv.memories[0].pool.blocks)

    def answer(self, name: str, **params) -> list[int]:
        output = self.add(name, **params)
        self.run()
        return output.outputs[0].token_ids


@pytest.fixture(
    scope="module",
    params=[
        ("smollm2", "exact", "auto"),
        ("smollm2", "exact", "int8"),
        ("smollm2", "exact", "fp8_e4m3"),
        ("smollm2", "fast", "auto"),
        pytest.param(("qwen_05b", "exact", "auto"), marks=pytest.mark.models),
        pytest.param(("qwen_05b", "fast", "auto"), marks=pytest.mark.models),
        pytest.param(("gemma", "exact", "auto"), marks=pytest.mark.models),
        pytest.param(("gemma", "fast", "auto"), marks=pytest.mark.models),
    ],
    ids="-".join,
)
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    model, *formats = request.param
    yield Loaded(getattr(models, model)(), *formats)
    oracle.forget()


def test_greedy_text_is_that_of_transformers_alone_and_in_one_batch(loaded: Loaded) -> None:
    bench = Bench(loaded)
    outputs = {name: bench.add(name) for name in PROMPTS}
    bench.run()
    assert bench.most_running == len(PROMPTS)
    assert {name: output.outputs[0].token_ids for name, output in outputs.items()} == loaded.expected
    assert Bench(loaded).answer("capital") == loaded.expected["capital"]


def test_chunk_size_does_not_matter(loaded: Loaded) -> None:
    bench = Bench(loaded, max_num_batched_tokens=23)
    outputs = {name: bench.add(name) for name in ("passage", "code")}
    bench.run()
    assert bench.core.counters.n_steps >= N_TOKENS + 2, "the passage was not cut into three"
    for name, output in outputs.items():
        assert output.outputs[0].token_ids == loaded.expected[name]


def test_an_uncut_prompt_gives_the_same(loaded: Loaded) -> None:
    bench = Bench(loaded, max_num_batched_tokens=32, enable_chunked_prefill=False)
    assert bench.answer("passage") == loaded.expected["passage"]
    assert bench.core.counters.n_steps == N_TOKENS and len(loaded.prompts["passage"]) > 32


def test_a_cached_prefix_gives_the_same_as_a_cold_one(loaded: Loaded) -> None:
    bench = Bench(loaded)
    assert bench.answer("passage") == loaded.expected["passage"]
    warm = bench.add("passage")
    bench.run()
    assert warm.usage.n_cached >= 32 and warm.outputs[0].token_ids == loaded.expected["passage"]


def test_a_prefix_shared_while_it_is_computed_gives_the_same(loaded: Loaded) -> None:
    bench = Bench(loaded)
    outputs = [bench.add("passage") for _ in range(3)]
    bench.run()
    assert [output.usage.n_cached > 0 for output in outputs] == [False, True, True] and bench.most_shared > 0
    assert all(output.outputs[0].token_ids == loaded.expected["passage"] for output in outputs)


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_preempted_and_brought_back_gives_the_same(loaded: Loaded, mode: str, caching: bool) -> None:
    n_blocks = -(-len(loaded.prompts["passage"]) // 16) + 3
    bench = Bench(loaded, n_blocks=n_blocks, preemption_mode=mode, enable_prefix_caching=caching)
    outputs = {name: bench.add(name, max_tokens=24) for name in ("passage", "capital", "code", "emoji")}
    bench.run()
    scheduler, kv = bench.core.scheduler, bench.core.kv
    for name, output in outputs.items():
        assert output.outputs[0].token_ids[:N_TOKENS] == loaded.expected[name]
    if mode == "swap":
        assert scheduler.n_swaps > 0 and scheduler.n_recomputes == 0 and kv.memories[0].n_promoted > 0
        n_known = sum(output.usage.n_cached for output in outputs.values())
        n_prompt = sum(output.usage.n_prompt for output in outputs.values())
        assert bench.core.counters.prompt_tokens == n_prompt - n_known, "something was computed again"
    else:
        assert scheduler.n_recomputes > 0 and scheduler.n_swaps == 0


def test_a_prefix_that_comes_back_from_host_memory_gives_the_same(loaded: Loaded) -> None:
    bench = Bench(loaded, n_blocks=-(-len(loaded.prompts["passage"]) // 16) + 3)
    assert bench.answer("passage") == loaded.expected["passage"]
    bench.answer("emoji", max_tokens=64)
    n_demoted = bench.core.kv.memories[0].n_demoted
    again = bench.add("passage")
    bench.run()
    assert n_demoted > 0 and bench.core.kv.memories[0].n_promoted > 0
    assert again.usage.n_cached >= 32 and again.outputs[0].token_ids == loaded.expected["passage"]


def test_choices_of_one_prompt_share_its_blocks_and_give_the_same(loaded: Loaded) -> None:
    bench = Bench(loaded)
    output = bench.add("passage", n=3)
    bench.run()
    assert bench.most_shared >= len(loaded.prompts["passage"]) // 16
    assert all(choice.token_ids == loaded.expected["passage"] for choice in output.outputs)


def test_a_seeds_result_does_not_depend_on_neighbours_chunks_cache_or_preemption(loaded: Loaded) -> None:
    drawn = {"temperature": 0.9, "seed": 11, "top_p": 0.95}
    alone = Bench(loaded).answer("code", **drawn)
    assert alone != loaded.expected["code"], "the draw was greedy"

    crowd = Bench(loaded)
    for name in ("passage", "capital", "emoji"):
        crowd.add(name, temperature=1.0, seed=3)
    assert crowd.answer("code", **drawn) == alone and crowd.most_running == 4

    chunked = Bench(loaded, max_num_batched_tokens=16)
    chunked.add("passage")
    assert chunked.answer("code", **drawn) == alone

    warm = Bench(loaded)
    first = warm.answer("passage", **drawn)
    again = warm.add("passage", **drawn)
    warm.run()
    assert again.usage.n_cached > 0 and again.outputs[0].token_ids == first

    pressed = Bench(loaded, n_blocks=-(-len(loaded.prompts["passage"]) // 16) + 2)
    pressed.add("passage", max_tokens=24)
    young = pressed.add("code", **drawn, max_tokens=32)
    pressed.run()
    assert pressed.core.scheduler.n_preemptions > 0 and young.outputs[0].token_ids[:N_TOKENS] == alone


def test_prompt_logprobs_do_not_depend_on_chunks_or_cache(loaded: Loaded) -> None:
    bench = Bench(loaded)
    bench.answer("passage")
    whole = bench.add("passage", prompt_logprobs=1, max_tokens=1)
    bench.run()
    cut = Bench(loaded, max_num_batched_tokens=16)
    chunked = cut.add("passage", prompt_logprobs=1, max_tokens=1)
    cut.run()
    assert len(whole.prompt_logprobs) == len(chunked.prompt_logprobs) == len(loaded.prompts["passage"])
    for a, b in zip(whole.prompt_logprobs[1:], chunked.prompt_logprobs[1:], strict=True):
        assert a.token_id == b.token_id and a.logprob == pytest.approx(b.logprob, abs=1e-4)


@pytest.mark.skipif(launch.missing is not None, reason=f"no native operators: {launch.missing}")
def test_chunks_company_cache_and_preemption_do_not_change_a_bit(loaded: Loaded) -> None:
    def logprobs(bench: Bench, *beside: str) -> list[TokenLogprob]:
        for name in beside:
            bench.add(name, max_tokens=48)
        output = bench.add("passage", logprobs=1, max_tokens=24)
        bench.run()
        return output.outputs[0].logprobs

    bench = Bench(loaded)
    alone = logprobs(bench)
    assert len(alone) == 24
    n_cached = bench.core.counters.cached_tokens
    assert logprobs(bench) == alone and bench.core.counters.cached_tokens > n_cached
    assert logprobs(Bench(loaded, max_num_batched_tokens=23), "code", "capital") == alone
    for mode in ("swap", "recompute"):
        pressed = Bench(loaded, n_blocks=-(-len(loaded.prompts["passage"]) // 16) + 2, preemption_mode=mode)
        assert logprobs(pressed, "code") == alone and pressed.core.scheduler.n_preemptions > 0


def test_weights_that_stay_quantised_give_the_same(loaded: Loaded) -> None:
    if loaded.formats[0] == "fast":
        pytest.skip("they stay quantised in every case")
    dense, (loaded.runner, _) = loaded.runner, load(loaded.path, "auto", *loaded.formats)
    try:
        assert loaded.runner.weights_bytes < dense.weights_bytes / 2
        bench = Bench(loaded)
        outputs = {name: bench.add(name) for name in PROMPTS}
        bench.run()
        assert {name: output.outputs[0].token_ids for name, output in outputs.items()} == loaded.expected
    finally:
        loaded.runner = dense
