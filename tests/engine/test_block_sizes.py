"""Blocks of each size on real weights give the same answers to the bit, whatever becomes of them meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading import load_core
from engine.outputs import RequestOutput
from engine.types import Request, SamplingParams, TokenLogprob
from kernels.cpu import launch
from tests import models
from tests.engine.fewer_blocks import FewerBlocks
from tests.engine.test_equality import PASSAGE

SIZES = (16, 32, 64, 128)
N_TOKENS = 12
HOST_BYTES = 48 << 20
OTHER_TOKENS = 248
"""Eight below a border of blocks of each size."""
pytestmark = pytest.mark.skipif(launch.missing is not None, reason=f"no native operators: {launch.missing}")


class World:
    """One model with blocks of one size; `run` gives each case a core, and a cache, of its own."""

    def __init__(self, block_size: int, folder: Path) -> None:
        config = {"max_model_len": 1024, "kv_cache_memory": 64 << 20, "swap_space": HOST_BYTES, "kv_disk_folder": str(folder)}
        self._loaded = load_core(models.smollm2(), EngineConfig(block_size=block_size, **config))
        core = self._loaded.make_core(lambda events: None)
        self._runner, self._connector = core.runner, core._connector
        self.block_size = core.kv.block_size
        passage = self._loaded.tokenizer.encode(PASSAGE)
        self.long = (passage * 6)[:300]
        self.others = [(passage[i:] * 6)[:OTHER_TOKENS] for i in (1, 2)]

    def core(self, **knobs) -> EngineCore:
        """n_blocks: how many of the blocks are in use."""
        n_blocks = knobs.pop("n_blocks", self._runner.kv_groups[0].n_blocks)
        connector = self._connector if knobs.pop("disk", False) else None
        self._outputs: dict[int, RequestOutput] = {}
        runner = FewerBlocks(self._runner, {"all": n_blocks}, min(1024, (n_blocks - 1) * self.block_size))
        config = EngineConfig(debug_checks=True, max_num_seqs=8, **knobs)
        return EngineCore(config, runner, self._loaded.tokenizer, self._receive, connector)

    def _receive(self, events) -> None:
        for event in events:
            self._outputs[event.uid].add(event)

    def add(self, core: EngineCore, prompt: list[int], **params) -> RequestOutput:
        settings = SamplingParams(**({"temperature": 0.0, "max_tokens": N_TOKENS, "ignore_eos": True, "logprobs": 1} | params))
        request = Request("", prompt, settings)
        output = self._outputs[core.add(request)] = RequestOutput.empty(prompt, settings.n)
        return output

    def answer(self, core: EngineCore, prompt: list[int], **params) -> list[TokenLogprob]:
        output = self.add(core, prompt, **params)
        finish(core)
        return output.outputs[0].logprobs


def finish(core: EngineCore) -> None:
    core.step()
    while core.scheduler.has_work:
        core.step()
    assert core.kv.is_whole


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[TokenLogprob]:
    """With the smallest size, cold."""
    world = World(SIZES[0], tmp_path_factory.mktemp("kv"))
    return world.answer(world.core(enable_prefix_caching=False), world.long)


@pytest.mark.parametrize("size", SIZES)
def test_blocks_of_each_size_give_the_same_answers_to_the_bit(size: int, expected: list[TokenLogprob], tmp_path: Path) -> None:
    world = World(size, tmp_path)
    assert world.block_size == size and len(expected) == N_TOKENS
    assert world.answer(world.core(enable_prefix_caching=False), world.long) == expected
    assert world.answer(world.core(max_num_batched_tokens=37), world.long) == expected, "in chunks"

    core = world.core()
    world.answer(core, world.long)
    warm = world.add(core, world.long)
    finish(core)
    assert warm.outputs[0].logprobs == expected and warm.usage.n_cached == (len(world.long) - 1) // size * size > 0

    core = world.core()
    forked = world.add(core, world.long, n=3)
    finish(core)
    assert all(choice.logprobs == expected for choice in forked.outputs)

    n_long, n_other = (-(-n // size) for n in (len(world.long) + N_TOKENS, OTHER_TOKENS))
    for mode in ("swap", "recompute"):
        core = world.core(n_blocks=n_long + 2 * n_other + 1, preemption_mode=mode)
        old = [world.add(core, other, max_tokens=16) for other in world.others]
        young = world.add(core, world.long)
        finish(core)
        assert young.outputs[0].logprobs == expected and all(output.error is None for output in old)
        assert young.usage.n_preemptions > 0 and core.scheduler.n_swaps == (mode == "swap") * core.scheduler.n_preemptions

    core = world.core(n_blocks=n_long + 1)
    world.answer(core, world.long)
    world.answer(core, world.others[0])
    assert core.kv.memories[0].n_demoted > 0 and world.answer(core, world.long) == expected
    assert core.counters.cached_host_tokens >= size


@pytest.mark.parametrize("size", SIZES)
def test_blocks_of_each_size_come_back_from_disk(size: int, expected: list[TokenLogprob], tmp_path: Path) -> None:
    before = World(size, tmp_path)
    core = before.core(disk=True)
    core.kv.exchange.kept_tokens = size
    before.answer(core, before.long)
    core.store_rest()
    before._connector.close()
    after = World(size, tmp_path)
    core = after.core(disk=True)
    again = after.add(core, after.long)
    finish(core)
    assert again.outputs[0].logprobs == expected
    assert core.counters.cached_disk_tokens == again.usage.n_cached == (len(after.long) - 1) // size * size
    after._connector.close()
