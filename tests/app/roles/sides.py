"""The two sides of a handing over, each with an engine on the fake runner: real scheduling, real shared memory, real sockets.

The fake runner checks at each step that every position holds the KV of its own prefix, so nothing wrong can be taken over
unseen.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import structs

from app.models.host import ModelHost
from app.roles.decode import RemotePrefill
from app.roles.prefill import PrefillServer
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.kv.tiers.shared import SharedStore
from engine.kv.tiers.shared_folder import KIND_DIGITS, SharedFolder
from engine.kv.tiers.shared_tier import SharedTier
from engine.outputs import RequestOutput
from engine.types import SamplingParams
from tests.app.scripted import until
from tests.engine.fake_runner import ByteTokenizer, SharingRunner, fake_info
from tests.forks import Ready

BLOCK, WINDOW, N_PROMPT, N_OUTPUT = 16, 2048, 800, 6
KIND = "0123456789abcdef" * 2


def make_engine(
    role: str,
    memory: Path,
    *,
    step_s: float = 0.0,
    n_blocks: int = 400,
    lease_s: float = 30.0,
    most: int = 1 << 20,
) -> AsyncEngine:
    """An engine of the running event loop's."""
    config = EngineConfig(block_size=BLOCK, debug_checks=True, role=role, max_num_batched_tokens=128)
    runner, tokenizer = SharingRunner(n_blocks, BLOCK, WINDOW, step_s=step_s, n_host_blocks=300), ByteTokenizer()
    connector = None
    if role != "both":
        folder = SharedFolder(memory)
        store = SharedStore(folder.kind(KIND[:KIND_DIGITS]), most, lease_s)
        connector = SharedTier(folder, store, runner.buffers, hands_over=role == "prefill")
    info = structs.replace(fake_info(runner), kv_kind=KIND)
    return AsyncEngine(lambda emit: EngineCore(config, runner, tokenizer, emit, connector), tokenizer, None, info, config)


class Decode:
    """A decode server without its HTTP. `outcomes` are those of the prompts so far."""

    def __init__(self, engine: AsyncEngine, memory: Path, wait_s: float, lease_s: float) -> None:
        self.engine = engine
        self.outcomes: Counter[str] = Counter()
        folder = SharedFolder(memory)
        self.release = folder.release
        kind = folder.kind(KIND[:KIND_DIGITS])
        engine.ahead = RemotePrefill(engine, kind, self._note, wait_s=wait_s, lease_s=lease_s)

    def _note(self, outcome: str) -> None:
        self.outcomes[outcome] += 1

    async def ask(self, prompt: list[int], **options: Any) -> RequestOutput:
        output = RequestOutput.empty(prompt, 1)
        params = SamplingParams(temperature=0.0, max_tokens=N_OUTPUT)
        async for event in self.engine.submit(prompt, params, **options):
            output.add(event)
        return output


@asynccontextmanager
async def prefill(memory: Path, **knobs: Any) -> AsyncIterator[ModelHost]:
    """A prefill server without its HTTP, once it can be asked."""

    async def load(_: object) -> AsyncEngine:
        return make_engine("prefill", memory, **knobs)

    host = ModelHost(load, name="fake")
    server = PrefillServer(host, memory)
    host.on_ready.append(server.attach)
    await host.start()
    await until(lambda: server._path is not None)
    try:
        yield host
    finally:
        await server.close()
        await host.close()


@asynccontextmanager
async def decode(memory: Path, *, wait_s: float = 30.0, lease_s: float = 30.0, **knobs: Any) -> AsyncIterator[Decode]:
    side = Decode(make_engine("decode", memory, lease_s=lease_s, **knobs), memory, wait_s, lease_s)
    try:
        yield side
    finally:
        await side.engine.close()
        side.release()


def prompt(i: int, n: int = N_PROMPT) -> list[int]:
    return list(random.Random(i).randbytes(n))


@cache
def expected(i: int, n: int = N_PROMPT) -> str:
    """What a process alone answers."""

    async def alone() -> str:
        engine = make_engine("both", Path())
        output = RequestOutput.empty(prompt(i, n), 1)
        async for event in engine.submit(prompt(i, n), SamplingParams(temperature=0.0, max_tokens=N_OUTPUT)):
            output.add(event)
        await engine.close()
        return output.outputs[0].text

    return asyncio.run(alone())


async def expect(i: int, n: int = N_PROMPT) -> str:
    return await asyncio.to_thread(expected, i, n)


async def until_idle(engine: AsyncEngine) -> None:
    for _ in range(1000):
        stats = await engine.stats()
        if stats.n_running == stats.n_waiting == stats.n_used == engine.n_live == 0:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"still busy: {stats}")


def blocks_in(memory: Path) -> int:
    return len(list(memory.glob("*/*/*.kv")))


def run_prefill(ready: Ready, memory: str) -> None:
    """A prefill server, until it is killed."""

    async def run() -> None:
        async with prefill(Path(memory), step_s=0.002, lease_s=0.5):
            ready()
            await asyncio.sleep(600)

    asyncio.run(run())


def run_decode(ready: Ready, memory: str, first: str) -> None:
    """A decode server that asks one thing after the other, until it is killed."""

    async def run() -> None:
        async with decode(Path(memory), lease_s=0.5) as side:
            ready()
            for i in itertools.count(int(first)):
                await side.ask(prompt(i))

    asyncio.run(run())
