"""Either side is killed at any moment, again and again: no answer hangs or changes, and nothing is left behind."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from tests.app.roles.sides import blocks_in, decode, expect, prefill, prompt, until_idle
from tests.app.scripted import until
from tests.forks import forks_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is handed over on Windows")
N_KILLS = 60
N_PROMPTS = 12
ANSWER_S = 20.0
"""No answer may take so long; one that waits for the dead would take longer."""


async def test_prefill_sides_that_are_killed_cost_time_only(memory: Path) -> None:
    rng = random.Random(1)
    for i in range(N_PROMPTS):
        await expect(i)
    with forks_of("tests.app.roles.sides:run_prefill") as forks:
        async with decode(memory, lease_s=0.5) as side:
            for n in range(N_KILLS):
                peer = await asyncio.to_thread(forks.start, str(memory))
                asking = asyncio.gather(*(side.ask(prompt((n + i) % N_PROMPTS)) for i in range(2)))
                n_before = rng.choice((rng.randrange(60), 1000))  # blocks that it hands over first; or both prompts are done
                async with asyncio.timeout(ANSWER_S):
                    while blocks_in(memory) < n_before and not asking.done():
                        await asyncio.sleep(0.001)
                    forks.kill(peer)
                    outputs = await asking
                for i, output in enumerate(outputs):
                    assert output.outputs[0].text == await expect((n + i) % N_PROMPTS)
                await side.engine.evict_cached()
            await until_idle(side.engine)
            host = side.engine._core.kv.memories[0].host
            assert not (host._held or host.reserved), "a slot waits for the dead"
            assert side.outcomes["done"] > 5 and side.outcomes["failed"] > 5, side.outcomes
            await until(lambda: blocks_in(memory) == len(list(memory.glob("*/*/*.partial"))) == 0)
    assert list(memory.iterdir()) == []


async def test_decode_sides_that_are_killed_cost_nothing(memory: Path) -> None:
    rng = random.Random(2)
    with forks_of("tests.app.roles.sides:run_decode") as forks:
        async with prefill(memory, step_s=0.002, lease_s=0.5, n_blocks=300) as host, decode(memory, lease_s=0.5) as side:
            exchange = host.current._core.exchange
            for n in range(N_KILLS):
                n_before = exchange.n_stored + rng.randrange(1, 120)
                in_mid_prompt = [lambda: host.current.n_live, lambda n_before=n_before: exchange.n_stored >= n_before]
                peer = await asyncio.to_thread(forks.start, str(memory), str(1000 + 10 * n))
                await until(in_mid_prompt[n % 2], ANSWER_S)
                forks.kill(peer)
                assert host.current.is_alive
            async with asyncio.timeout(ANSWER_S):
                output = await side.ask(prompt(0))
            assert output.outputs[0].text == await expect(0) and side.outcomes == {"done": 1}
            await until_idle(host.current)
            counters = (await host.current.stats()).counters
            assert counters.n_aborted > 5 and counters.n_finished > 5, counters
            kv = host.current._core.kv
            assert (
                not (kv.memories[0].host._held or kv.memories[0].host.reserved) and kv.exchange.n_settled == kv.exchange._n_asked
            )
            await until(lambda: blocks_in(memory) == 0)
    assert list(memory.iterdir()) == []
