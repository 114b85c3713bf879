"""The equality matrix for models whose layers remember in different ways, on tiny random models of transformers' own classes.

Windows, states and keys of all tokens: whatever chunks, company, hits, forks, preemption and tiers, text is that of transformers
and log probabilities are the same to the last bit. Every case asserts that its trigger happened.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.kv import states
from engine.kv.tiers.disk import DiskStore
from engine.kv.tiers.disk_tier import DiskTier
from engine.outputs import RequestOutput
from engine.runner.runner import ModelRunner
from engine.scheduler import Scheduler, _Draft
from engine.types import Event, Request, SamplingParams, TokenLogprob
from engine.weights.loader import open_checkpoint
from tests.engine.fake_runner import ByteTokenizer
from tests.engine.fewer_blocks import FewerBlocks
from tests.engine.models import tiny

BLOCK = 8
N_TOKENS = 20
LONGEST = 400
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": ("gemma3_text", {"head_dim": 32, "num_hidden_layers": 7, "sliding_window": 21}),
    "mistral": ("mistral", {"sliding_window": 21}),
    "qwen3_5": (
        "qwen3_5_text",
        {
            **{"head_dim": 32, "num_hidden_layers": 5, "linear_num_value_heads": 4, "linear_num_key_heads": 2},
            **{"linear_key_head_dim": 16, "linear_value_head_dim": 24},
        },
    ),
    "bamba": ("bamba", {"num_hidden_layers": 4, "attn_layer_indices": [2], "mamba_n_heads": 8, "mamba_d_state": 16}),
    "deepseek": (
        "deepseek_v3",
        {
            **{"kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 24},
            **{"num_key_value_heads": 4, "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 3},
            **{"moe_intermediate_size": 48, "n_group": 4, "topk_group": 2},
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            **{"head_dim": 16, "global_head_dim": 32, "num_hidden_layers": 6, "sliding_window": 21},
            **{"layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 3},
            **{"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 257, "use_double_wide_mlp": True},
        },
    ),
    "llama4": (
        "llama4_text",
        {
            **{"num_hidden_layers": 5, "no_rope_layers": [1, 0, 1, 1, 0], "attention_chunk_size": 21, "head_dim": 16},
            **{"floor_scale": 16, "attn_scale": 0.7, "num_local_experts": 6, "interleave_moe_layer_step": 2},
            "intermediate_size_mlp": 80,
        },
    ),
    "transformers' own": ("gpt_neox", {"hidden_act": "gelu"}),
    "mamba alone": ("bamba", {"num_hidden_layers": 3, "attn_layer_indices": [], "mamba_n_heads": 8, "mamba_d_state": 16}),
}
KINDS = {
    "gemma3": ["all tokens", "window of 21"],
    "mistral": ["window of 21"],
    "qwen3_5": ["all tokens", "state"],
    "bamba": ["all tokens", "state"],
    "deepseek": ["all tokens"],
    "gemma4": ["all tokens", "window of 21"],
    "llama4": ["all tokens", "window of 21"],
    "transformers' own": ["all tokens"],
    "mamba alone": ["state"],
}


class Model:
    """A tiny model on disk and in memory, its prompts, and what transformers answers."""

    def __init__(self, name: str, folder: Path, family: str, settings: dict[str, Any], kinds: list[str]) -> None:
        self.name, self.folder = name, folder
        self.oracle = tiny.saved(folder, family, **settings, max_position_embeddings=LONGEST + 112, vocab_size=257)
        rng = random.Random(1)
        trunk = [rng.randrange(256) for _ in range(150)]
        self.prompts = {
            "short": [rng.randrange(256) for _ in range(5)],
            "other": [rng.randrange(256) for _ in range(90)],
            "trunk": list(trunk),
            "branch": trunk + [rng.randrange(256) for _ in range(40)],
        }
        self.runner = self.load()
        assert [group.name for group in self.runner.kv_groups] == kinds
        self.expected = {name: self.greedy(prompt) for name, prompt in self.prompts.items()}

    def load(self) -> ModelRunner:
        config = EngineConfig(
            device="cpu", dtype="float32", kernel_precision="exact", block_size=BLOCK, max_num_seqs=8, max_model_len=LONGEST,
            max_num_batched_tokens=64, kv_cache_memory=8 << 20, swap_space=8 << 20,
        )  # fmt: skip
        return ModelRunner(config, open_checkpoint(self.folder))

    @torch.inference_mode()
    def greedy(self, prompt: list[int]) -> list[int]:
        tokens = list(prompt)
        for _ in range(N_TOKENS):
            tokens.append(int(self.oracle(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        return tokens[len(prompt) :]


class Bench:
    def __init__(self, model: Model, *, blocks: dict[str, int] | None = None, tier: DiskTier | None = None, **knobs) -> None:
        self.model = model
        defaults = dict(max_num_seqs=8, max_num_batched_tokens=64, debug_checks=True)
        runner = model.runner
        if blocks is not None:
            runner = FewerBlocks(runner, blocks)
        self.core = EngineCore(EngineConfig(**{**defaults, **knobs}), runner, ByteTokenizer(), self._receive, tier)
        if self.core.exchange is not None:
            self.core.exchange.kept_tokens = BLOCK
        self.outputs: dict[int, RequestOutput] = {}

    def _receive(self, events: list[Event]) -> None:
        for event in events:
            self.outputs[event.uid].add(event)

    def add(self, name: str, **params) -> RequestOutput:
        settings = SamplingParams(**{"temperature": 0.0, "max_tokens": N_TOKENS, "ignore_eos": True, "logprobs": 0} | params)
        request = Request(name, self.model.prompts[name], settings)
        uid = self.core.add(request)
        output = self.outputs[uid] = RequestOutput.empty(request.prompt_token_ids, settings.n)
        return output

    def run(self) -> None:
        self.core.step()
        while self.core.scheduler.has_work:
            self.core.step()
        assert self.core.kv.is_whole

    def answer(self, name: str, **params) -> RequestOutput:
        output = self.add(name, **params)
        self.run()
        return output

    def most_shared(self) -> list[int]:
        return [sum(block.refs > 1 for block in memory.pool.blocks) for memory in self.core.kv.memories]

    @property
    def is_recurrent(self) -> bool:
        return self.core.kv.groups[-1].recurrent


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(request.param, tmp_path_factory.mktemp("model"), *MODELS[request.param], KINDS[request.param])


def text(output: RequestOutput, choice: int = 0) -> list[int]:
    assert output.error is None
    return output.outputs[choice].token_ids


def logprobs(output: RequestOutput) -> list[TokenLogprob]:
    return output.outputs[0].logprobs


def test_answers_are_those_of_transformers_alone_and_in_one_batch(model: Model) -> None:
    bench = Bench(model)
    outputs = {name: bench.add(name) for name in model.prompts}
    bench.run()
    assert {name: text(output) for name, output in outputs.items()} == model.expected
    for name, output in outputs.items():
        assert logprobs(Bench(model).answer(name)) == logprobs(output)


@pytest.mark.parametrize("budget", [16, 37, 400])
def test_chunks_do_not_change_a_bit(model: Model, budget: int) -> None:
    bench = Bench(model, max_num_batched_tokens=budget)
    output = bench.answer("branch")
    assert text(output) == model.expected["branch"] and logprobs(output) == logprobs(Bench(model).answer("branch"))
    if budget < 400:
        assert bench.core.counters.n_steps >= N_TOKENS + 190 // budget
    elif not bench.is_recurrent:
        assert bench.core.counters.n_steps == N_TOKENS


def test_an_uncut_prompt_gives_the_same(model: Model) -> None:
    output = Bench(model, max_num_batched_tokens=16, enable_chunked_prefill=False).answer("branch")
    assert text(output) == model.expected["branch"]


def test_the_same_prompt_again_is_found_up_to_its_last_block_and_gives_the_same(model: Model) -> None:
    bench = Bench(model)
    cold, warm = bench.answer("trunk"), bench.answer("trunk")
    assert warm.usage.n_cached == 149 // BLOCK * BLOCK
    assert text(warm) == model.expected["trunk"] and logprobs(warm) == logprobs(cold)


def test_a_prompt_that_branches_off_is_found_as_far_as_it_is_the_same(model: Model) -> None:
    """Within one interval of kept states where there are any, to the block where there are none."""
    bench = Bench(model)
    bench.answer("trunk")
    branch = bench.answer("branch")
    assert branch.usage.n_cached == 149 // BLOCK * BLOCK
    assert text(branch) == model.expected["branch"] and logprobs(branch) == logprobs(Bench(model).answer("branch"))


def test_a_conversation_goes_on_from_the_end_of_its_answer(model: Model) -> None:
    bench = Bench(model)
    first = bench.answer("trunk", max_tokens=60)
    history = model.prompts["trunk"] + text(first)
    model.prompts["next turn"] = [*history, 7, 8, 9]
    output = bench.answer("next turn")
    assert output.usage.n_cached >= len(history) - 1 - BLOCK, "the last token's state was never computed"
    assert logprobs(output) == logprobs(Bench(model).answer("next turn"))


def test_a_long_prompt_keeps_states_on_its_way(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "INTERVAL_TOKENS", 4 * BLOCK)
    rng = random.Random(3)
    prompt = [rng.randrange(256) for _ in range(300)]
    for n_common in (300, 201, 130, 33):
        bench = Bench(model)
        model.prompts |= {"first": prompt, "second": prompt[:n_common] + [3, 1, 4]}
        bench.answer("first", max_tokens=1)
        again = bench.answer("second")
        most = n_common // BLOCK * BLOCK
        assert most - (4 * BLOCK if bench.is_recurrent else 0) <= again.usage.n_cached <= most
        assert again.usage.n_cached > 0
        assert logprobs(again) == logprobs(Bench(model).answer("second"))


def test_ends_of_turns_are_kept(model: Model) -> None:
    """The system prompt is found under another first turn."""
    rng = random.Random(4)
    system = [*(rng.randrange(256) for _ in range(70)), 256]
    for name in ("one", "two"):
        model.prompts[name] = [*system, *(rng.randrange(256) for _ in range(100))]
    bench = Bench(model)
    bench.answer("one")
    two = bench.answer("two")
    assert two.usage.n_cached == 71 // BLOCK * BLOCK
    assert logprobs(two) == logprobs(Bench(model).answer("two"))


def test_a_prompt_that_others_compute_is_waited_for(model: Model) -> None:
    bench = Bench(model)
    outputs = [bench.add("trunk") for _ in range(3)]
    bench.run()
    assert [output.usage.n_cached > 100 for output in outputs] == [False, True, True]
    assert all(text(output) == model.expected["trunk"] for output in outputs)


def test_choices_of_one_prompt_give_the_same(model: Model) -> None:
    bench = Bench(model)
    output = bench.add("trunk", n=3)
    most = 0
    bench.core.step()
    while bench.core.scheduler.has_work:
        most = max(most, max(bench.most_shared()))
        bench.core.step()
    assert all(text(output, i) == model.expected["trunk"] for i in range(3))
    assert most >= (1 if model.name == "mamba alone" else 21 // BLOCK)
    drawn = {"temperature": 1.0, "seed": 5}
    together = Bench(model).answer("trunk", n=3, **drawn)
    chunked = Bench(model, max_num_batched_tokens=19).answer("trunk", n=3, **drawn)
    assert [text(together, i) for i in range(3)] == [text(chunked, i) for i in range(3)]
    assert len({tuple(text(together, i)) for i in range(3)}) == 3


def test_a_beam_search_does_not_depend_on_chunks_or_room(model: Model) -> None:
    asked = {"n": 3, "beam_width": 3, "logprobs": None, "max_tokens": 10}
    wide = Bench(model).answer("other", **asked)
    for knobs in ({"max_num_batched_tokens": 19}, {"blocks": {"all": 50, "window": 36, "state": 6}}):
        narrow = Bench(model, **knobs).answer("other", **asked)
        assert [text(narrow, i) for i in range(3)] == [text(wide, i) for i in range(3)]


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_preempted_and_brought_back_gives_the_same(model: Model, mode: str, caching: bool) -> None:
    alone = {name: logprobs(Bench(model).answer(name, max_tokens=60)) for name in model.prompts}
    bench = Bench(
        model, blocks={"all": 45, "window": 28, "state": 5}, preemption_mode=mode, enable_prefix_caching=caching, max_num_seqs=4
    )
    names = [name for _ in range(2) for name in ("branch", "other", "short", "trunk")]
    outputs = []
    for i, name in enumerate(names):
        outputs.append(bench.add(name, max_tokens=60))
        if model.name in ("mistral", "mamba alone") and i % 4 == 2:  # these never run out of blocks by themselves
            for _ in range(6):
                bench.core.step()
            _preempt(bench.core.scheduler)
    bench.run()
    scheduler, memories = bench.core.scheduler, bench.core.kv.memories
    for name, output in zip(names, outputs, strict=True):
        assert logprobs(output) == alone[name]
    if mode == "swap":
        assert scheduler.n_swaps > 0 and scheduler.n_recomputes == 0
        assert sum(memory.n_promoted for memory in memories) > 0 or model.name in ("mistral", "mamba alone")
    else:
        assert scheduler.n_recomputes > 0 and scheduler.n_swaps == 0


def _preempt(scheduler: Scheduler) -> None:
    for seq in list(scheduler.running):
        scheduler._preempt(_Draft(0), seq)


def test_a_prefix_that_comes_back_from_host_memory_gives_the_same(model: Model) -> None:
    bench = Bench(model, blocks={"all": 40, "window": 30, "state": 5})
    cold = bench.answer("branch")
    for i in range(8):
        model.prompts["filler"] = [i] * 180
        bench.answer("filler")
    demoted = [memory.n_demoted for memory in bench.core.kv.memories]
    again = bench.answer("branch")
    assert all(n > 0 for n in demoted) and all(memory.n_promoted > 0 for memory in bench.core.kv.memories)
    assert again.usage.n_cached == 189 // BLOCK * BLOCK and logprobs(again) == logprobs(cold)


def test_a_prefix_that_comes_back_from_disk_after_a_restart_gives_the_same(model: Model, tmp_path: Path) -> None:
    def restarted() -> Bench:
        runner = model.runner
        return Bench(model, tier=DiskTier(DiskStore(tmp_path, "kind", 1 << 30), runner.host.buffers))

    bench = restarted()
    cold = bench.answer("branch")
    bench.core.store_rest()
    bench.core._connector.close()
    bench = restarted()
    again = bench.answer("branch")
    bench.core._connector.close()
    assert bench.core.exchange.n_fetched > 0
    assert again.usage.n_cached == 189 // BLOCK * BLOCK and logprobs(again) == logprobs(cold)


def test_a_pinned_prefix_stays_while_others_come(model: Model) -> None:
    bench = Bench(model, blocks={"all": 60, "window": 40, "state": 6}, swap_space=0)
    request = Request("pin", model.prompts["trunk"], SamplingParams(temperature=0, max_tokens=1), pins=True)
    uid = bench.core.add(request)
    bench.outputs[uid] = RequestOutput.empty(request.prompt_token_ids, 1)
    bench.core.step()
    while bench.core.scheduler.has_work:
        bench.core.step()
    assert bench.outputs[uid].error is None and bench.core.kv.pins[uid].n_tokens == 149 // BLOCK * BLOCK
    for memory in bench.core.kv.memories:
        memory.host.clear()
    for i in range(8):
        model.prompts["filler"] = [i] * 180
        bench.add("filler")
    bench.core.step()
    while bench.core.scheduler.has_work:
        bench.core.step()
    for memory in bench.core.kv.memories:
        memory.host.clear()
    output = bench.add("trunk")
    bench.core.step()
    while bench.core.scheduler.has_work:
        bench.core.step()
    assert output.usage.n_cached == 149 // BLOCK * BLOCK and text(output) == model.expected["trunk"]
    assert bench.core.kv.pins.unpin(uid) > 0 and bench.core.kv.is_whole


def test_a_window_holds_no_more_blocks_than_it_needs(model: Model) -> None:
    bench = Bench(model, max_num_batched_tokens=16)
    output = bench.add("branch", max_tokens=100)
    most = [0] * len(bench.core.kv.memories)
    while bench.core.groups or not output.usage:
        bench.core.step()
        held = [len(memory.pool.blocks) - memory.pool.n_free for memory in bench.core.kv.memories]
        most = [max(pair) for pair in zip(most, held, strict=True)]
        if output.usage:
            break
    for n, group in zip(most, bench.core.kv.groups, strict=True):
        if group.recurrent:
            assert n <= 2
        elif group.window:
            assert 3 <= n <= -(-(21 + 16) // BLOCK) + 2 < -(-290 // BLOCK)
        else:
            assert n >= 289 // BLOCK
