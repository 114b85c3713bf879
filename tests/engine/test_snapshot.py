"""Statistics of a real engine under a day's mix: they add up at every step, and little of the KV cache's room is empty."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.kv.tiers.disk import DiskStore
from engine.kv.tiers.disk_tier import DiskTier
from engine.runner.runner import ModelRunner
from engine.stats import EngineStats
from engine.types import Request, SamplingParams
from engine.weights.loader import open_checkpoint
from tests.engine.fake_runner import VOCAB_SIZE, ByteTokenizer
from tests.engine.models import tiny
from tests.engine.test_core import Bench

CACHE_TOKENS, HOST_TOKENS, TOKEN_BYTES = 6000, 9000, 2 * 3 * 2 * 16 * 2
"""Keys and values, layers, heads, dims, bytes of float16."""
N_ROUNDS = 4
MOST_WASTE = 0.04


def mixed(rng: random.Random) -> list[list[list[int]]]:
    """Prompts, round by round: two conversations that grow, and calls that nobody repeats."""

    def text(n: int) -> list[int]:
        return [rng.randrange(256) for _ in range(n)]

    rounds = []
    chat, agent = text(900), text(2500)
    for _ in range(N_ROUNDS):
        chat, agent = chat + text(rng.randint(100, 500)), agent + text(rng.randint(200, 900))
        rounds.append([chat, agent, *(text(rng.randint(500, 1500)) for _ in range(5))])
    return rounds


def take(core: EngineCore) -> EngineStats:
    """Statistics before a step, whose waste is what no answer fills of the blocks in tables, counted another way."""
    taken: list[tuple[EngineStats, int]] = []
    core.ask(EngineCore.stats, lambda stats: taken.append((stats, n_filled(core))))
    core.step()
    ((stats, n),) = taken
    assert stats.n_wasted_tokens == stats.n_used * stats.block_size - n
    assert stats.waste == (stats.n_wasted_tokens / (stats.n_used * stats.block_size) if stats.n_used else 0)
    assert stats.n_free + stats.n_cached + stats.n_pinned + stats.n_used == stats.n_blocks == len(stats.blocks)
    assert stats.n_shared <= stats.n_used and stats.n_host_used <= stats.n_host_blocks
    return stats


def n_filled(core: EngineCore) -> int:
    """Slots of blocks in tables for which there is a token."""
    slots = set()
    for seq in core.scheduler.running:
        for i in range(len(seq.token_ids)):
            if i // core.kv.block_size < len(seq.tables[0]):
                slots.add((seq.tables[0][i // core.kv.block_size], i % core.kv.block_size))
    return len(slots)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_on_a_mixed_load_figures_add_up_and_less_than_a_twentyfifth_of_used_blocks_is_empty(
    block_size: int, tmp_path: Path
) -> None:
    tiny.saved(tmp_path / "model", "llama", max_position_embeddings=8192, vocab_size=VOCAB_SIZE)
    memory = {"kv_cache_memory": CACHE_TOKENS * TOKEN_BYTES, "swap_space": HOST_TOKENS * TOKEN_BYTES}
    config = EngineConfig(block_size=block_size, max_num_seqs=8, max_num_batched_tokens=512, **memory)
    runner = ModelRunner(config, open_checkpoint(tmp_path / "model"))
    block_bytes = runner.kv_groups[0].block_bytes
    disk = DiskTier(DiskStore(tmp_path / "kv", "kind", 1 << 30), runner.host.buffers)
    core = EngineCore(config, runner, ByteTokenizer(), lambda events: None, disk)
    rng, seen = random.Random(3), []
    for prompts in mixed(rng):
        for prompt in prompts:
            core.add(Request("", prompt, SamplingParams(temperature=0, ignore_eos=True, max_tokens=rng.randint(30, 150))))
        core.step()
        while core.scheduler.has_work:
            seen.append(take(core))
    core.store_rest()
    core.step()
    disk.close()
    last = take(core)
    total = last.counters
    assert sum(stats.n_running >= 4 for stats in seen) > 100 and last.n_wasted_tokens == 0
    assert 0 < sum(stats.n_wasted_tokens for stats in seen) / sum(stats.n_used * block_size for stats in seen) < MOST_WASTE
    if block_size <= 32:  # a moment of only short calls is too much for larger ones, which auto has for long windows
        assert max(stats.waste for stats in seen if stats.n_running >= 4) < MOST_WASTE

    assert total.cached_host_tokens > 0 and total.cached_host_tokens + total.cached_disk_tokens <= total.cached_tokens
    assert total.n_evictions > 0 and total.n_host_evictions > 0
    assert total.to_host_bytes >= total.n_demoted * block_bytes > 0
    assert total.from_host_bytes == total.n_promoted * block_bytes > 0
    on_disk = sum(path.stat().st_size for path in (tmp_path / "kv").glob("*/*"))
    assert total.to_disk_bytes == last.disk_bytes == on_disk > last.n_disk_blocks * block_bytes > 0
    assert total.n_damaged == 0 and last.disk_most_bytes == 1 << 30


def test_room_in_a_block_that_choices_share_is_empty_once() -> None:
    bench = Bench()
    bench.add("thirteen byte", n=3, temperature=1.0, max_tokens=9)
    bench.core.step()
    shared = [take(bench.core) for _ in range(4)]
    assert max(stats.n_shared for stats in shared) > 3 and any(stats.n_wasted_tokens for stats in shared)
    bench.finish()
