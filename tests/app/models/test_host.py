"""ModelHost without a server: loading, waiting, unloading."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import settings
from app.asgi import create_app
from app.commands.serve import settle
from app.errors import ModelFailed, ModelLoading
from app.models.host import ModelHost
from app.models.pool import ModelPool
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import EngineDead, ModelLoadError
from engine.types import SamplingParams
from tests import models
from tests.app.models.fakes import FakeEngine, Loads


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.models.host._WATCH_S", 0.005)


async def reach(host: ModelHost, state: str, within_s: float = 5) -> None:
    async with asyncio.timeout(within_s):
        while host.state != state:
            await asyncio.sleep(0.002)


async def acquire(host: ModelHost) -> Any:
    """The engine, let go at once."""
    async with host.use() as engine:
        return engine


async def unloaded() -> tuple[Loads, ModelHost]:
    """A host whose model was loaded once and is not any more."""
    loads = Loads()
    loads.go.set()
    host = ModelHost(loads, name="m")
    await host.start()
    await reach(host, "ready")
    await host.unload()
    return loads, host


async def test_start_returns_while_the_model_loads() -> None:
    loads = Loads()
    host = ModelHost(loads, name="m")
    await host.start()
    await asyncio.sleep(0)
    with pytest.raises(ModelLoading) as loading:
        await acquire(host)
    assert loading.value.retry_after_s >= 1 and host.progress == 0.5
    loads.go.set()
    await reach(host, "ready")
    assert await acquire(host) is loads.engines[0] is host.current
    await host.close()
    assert loads.engines[0].closed


async def test_every_new_engine_is_announced(quick: None) -> None:
    loads, seen = Loads(), []
    loads.go.set()
    host = ModelHost(loads, name="m")
    host.on_ready.append(seen.append)
    await host.start()
    await reach(host, "ready")
    await host.unload()
    await acquire(host)
    assert seen == loads.engines and len(seen) == 2
    await host.close()


async def test_requests_that_find_the_model_unloaded_wait_for_one_load() -> None:
    loads, host = await unloaded()
    loads.go.clear()
    waiting = [asyncio.create_task(acquire(host)) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert host.state == "loading" and not any(task.done() for task in waiting)
    loads.go.set()
    assert await asyncio.gather(*waiting) == [loads.engines[1]] * 3 and loads.n_begun == 2
    await host.close()


async def test_a_request_has_its_engine_though_the_one_it_waited_for_is_unloaded_before_its_turn() -> None:
    loads, host = await unloaded()
    unloads: list[asyncio.Task[None]] = []

    def unload_once(_: Any) -> None:
        if not unloads:
            unloads.append(asyncio.create_task(host.unload()))

    host.on_ready.append(unload_once)
    assert await acquire(host) is loads.engines[2] and loads.n_begun == 3
    assert unloads[0].done() and loads.engines[1].closed
    await host.close()


async def test_a_request_that_leaves_does_not_stop_the_load_it_began() -> None:
    loads, host = await unloaded()
    loads.go.clear()
    waiting = asyncio.create_task(acquire(host))
    await asyncio.sleep(0.01)
    waiting.cancel()
    loads.go.set()
    await reach(host, "ready")
    await host.close()


async def test_a_failed_load_says_why() -> None:
    loads = Loads()
    loads.error = ModelLoadError("The file is damaged.", "Download it again.")
    loads.go.set()
    host = ModelHost(loads, name="m")
    await host.start()
    await reach(host, "failed")
    with pytest.raises(ModelFailed, match="damaged"):
        await acquire(host)
    await host.close()


async def test_a_model_at_work_is_not_idle(quick: None) -> None:
    loads = Loads()
    loads.go.set()
    host = ModelHost(loads, name="m", idle_timeout_s=0.05)
    await host.start()
    await reach(host, "ready")
    loads.engines[0].n_live = 1
    await asyncio.sleep(0.15)
    assert host.state == "ready"
    loads.engines[0].n_live = 0
    await reach(host, "unloaded")
    await host.close()


async def test_a_dead_engine_is_replaced(quick: None) -> None:
    loads = Loads()
    loads.go.set()
    host = ModelHost(loads, name="m")
    await host.start()
    await reach(host, "ready")
    loads.engines[0].is_alive = False
    async with asyncio.timeout(5):
        while len(loads.engines) < 2:
            await asyncio.sleep(0.005)
    await reach(host, "ready")
    assert host.current is loads.engines[1]
    await host.close()


async def test_closing_while_the_model_loads_ends_the_load() -> None:
    loads = Loads()
    host = ModelHost(loads, name="m")
    await host.start()
    await asyncio.sleep(0)
    await host.close()
    assert loads.engines == [] and host.current is None


async def test_draining_waits_for_answers_then_unloads() -> None:
    loads = Loads()
    loads.go.set()
    host = ModelHost(loads, name="m")
    await host.start()
    await reach(host, "ready")
    (engine,) = loads.engines
    engine.n_live = 1
    draining = asyncio.create_task(host.drain(30))
    await asyncio.sleep(0.1)
    assert not engine.closed
    engine.n_live = 0
    await asyncio.wait_for(draining, 5)
    assert engine.closed
    await host.close()


async def test_draining_ends_answers_that_take_too_long() -> None:
    loads = Loads()
    loads.go.set()
    host = ModelHost(loads, name="m")
    await host.start()
    await reach(host, "ready")
    loads.engines[0].n_live = 1
    await host.drain(0.05)
    assert loads.engines[0].closed
    await host.close()


async def ready_host(loads: Loads, **options: Any) -> ModelHost:
    loads.go.set()
    host = ModelHost(loads, name="m", **options)
    await host.start()
    await reach(host, "ready")
    return host


async def test_a_model_that_ran_is_tried_again_after_a_failed_load(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.models.host._RETRY_S", 0.1)
    loads = Loads()
    host = await ready_host(loads)
    await host.unload()
    loads.error = ModelLoadError("The memory is full.")
    with pytest.raises(ModelFailed, match="memory is full"):
        await acquire(host)
    with pytest.raises(ModelFailed):  # at once: it rests
        await acquire(host)
    assert loads.n_begun == 2
    loads.error = None
    while not host.may_retry:
        await asyncio.sleep(0.01)
    assert await acquire(host) is loads.engines[1]
    await host.close()


async def test_a_model_that_never_ran_stays_failed(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.models.host._RETRY_S", 0.01)
    loads = Loads()
    loads.error = ModelLoadError("The file is damaged.")
    loads.go.set()
    host = ModelHost(loads, name="m")
    await host.start()
    await reach(host, "failed")
    await asyncio.sleep(0.1)
    assert host.state == "failed" and loads.n_begun == 1
    await host.close()


async def test_no_engine_is_loaded_before_the_old_one_has_let_go() -> None:
    loads = Loads()
    host = await ready_host(loads)
    (old,) = loads.engines
    old.may_close.clear()
    unloading = asyncio.create_task(host.unload())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(acquire(host))
    await asyncio.sleep(0.02)
    assert loads.n_begun == 1 and not waiting.done()
    old.may_close.set()
    assert await asyncio.wait_for(waiting, 5) is loads.engines[1] and old.closed
    await unloading
    await host.close()


async def test_no_load_begins_once_the_server_stops() -> None:
    loads = Loads()
    host = await ready_host(loads)
    await host.drain(0)
    with pytest.raises(EngineDead, match="stopping"):
        await acquire(host)
    assert loads.n_begun == 1
    await host.close()


@pytest.mark.parametrize("how", ["drain first", "close", "close at once"])
async def test_who_waits_for_a_load_when_the_server_stops_is_told(how: str) -> None:
    loads, host = await unloaded()
    loads.go.clear()
    waiting = [asyncio.create_task(acquire(host)) for _ in range(2)]
    left = asyncio.create_task(acquire(host))
    await asyncio.sleep(0 if how == "close at once" else 0.01)  # the load itself may not have begun
    left.cancel()
    if how == "drain first":
        await host.drain(0)
    await host.close()
    async with asyncio.timeout(5):
        for task in waiting:
            with pytest.raises(EngineDead, match="The server is stopping"):
                await task
        with pytest.raises(asyncio.CancelledError):
            await left


async def test_stopping_ends_a_load_at_its_next_tensor() -> None:
    ended = threading.Event()

    def fill(progress: Any) -> None:
        try:
            for done in range(10_000):
                time.sleep(0.002)
                progress(done, 10_000)
        finally:
            ended.set()

    async def load(progress: Any) -> Any:
        await asyncio.to_thread(fill, progress)

    host = ModelHost(load, name="m")
    await host.start()
    while host.progress == 0:
        await asyncio.sleep(0.005)
    await host.drain(0)
    assert await asyncio.to_thread(ended.wait, 2)
    await host.close()
    assert host.error is None


async def test_an_engine_that_fails_to_close_does_not_end_the_watch(quick: None) -> None:
    loads = Loads()
    host = await ready_host(loads, idle_timeout_s=0.02)
    loads.engines[0].close_error = RuntimeError("stuck")
    await reach(host, "unloaded")
    assert await acquire(host) is loads.engines[1]
    await reach(host, "unloaded")
    assert loads.engines[1].closed
    await host.close()


async def test_a_callback_that_fails_stops_neither_the_load_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    loads, seen = Loads(), []

    def broken(_: Any) -> None:
        raise RuntimeError("no")

    host = ModelHost(loads, name="m")
    host.on_ready += [broken, seen.append]
    loads.go.set()
    await host.start()
    await reach(host, "ready")
    assert seen == loads.engines and "callback" in caplog.text
    await host.close()


async def test_a_failed_load_keeps_nothing_of_what_it_had_loaded() -> None:
    class Weights:
        pass

    held: list[weakref.ref[Weights]] = []

    async def load(progress: Any) -> Any:
        weights = Weights()
        held.append(weakref.ref(weights))
        try:
            raise OSError("the disk is gone")
        except OSError as error:
            raise ModelLoadError("the file ends early") from error

    host = ModelHost(load, name="m")
    await host.start()
    await reach(host, "failed")
    gc.collect()
    assert held[0]() is None and host.error is not None
    await host.close()


@pytest.mark.parametrize("how", ["unload", "failed load"])
async def test_what_torch_keeps_of_a_gpus_memory_is_given_back_once_the_model_is_gone(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    class Weights:
        pass

    held: list[weakref.ref[Weights]] = []
    given_back: list[bool] = []
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: given_back.append(held[-1]() is None))

    async def load(progress: Any) -> Any:
        weights = Weights()
        held.append(weakref.ref(weights))
        if how == "failed load":
            raise ModelLoadError("the file ends early")
        engine = FakeEngine()
        engine.weights, engine.itself = weights, engine  # engines and their events refer to each other
        return engine

    host = ModelHost(load, name="m")
    await host.start()
    await reach(host, "ready" if how == "unload" else "failed")
    assert given_back == ([] if how == "unload" else [True])
    await host.unload()
    assert given_back == [True]
    await host.close()


@pytest.fixture
def collector() -> Iterator[None]:
    """Leaves the garbage collector as it was: on, and with nothing that it may not look at."""
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("collector", "quick")
@pytest.mark.parametrize("by", ["hand", "silence"])
async def test_an_unloaded_model_leaves_memory_though_it_was_frozen_and_watched(by: str) -> None:
    async def load(progress: Any) -> AsyncEngine:
        config = EngineConfig(device="cpu", max_model_len=64, max_num_seqs=2, kv_cache_memory=8 << 20)
        return await AsyncEngine.load(Path(models.smollm2()), config, progress)

    host = ModelHost(load, name="m", idle_timeout_s=0.2 if by == "silence" else 0.0)
    create_app(settings.make(), ModelPool(host))  # its parts hear of each engine
    host.on_ready.append(settle)
    gc.disable()
    async with asyncio.timeout(120):
        await host.start()
        while host.state == "loading":  # it may be unloaded again before it is seen to be ready
            await asyncio.sleep(0.002)
        for _ in range(2):
            engine = await acquire(host)
            assert [event async for event in engine.submit([1, 2, 3], SamplingParams(max_tokens=2))]
            runner = engine._core.runner
            held = [weakref.ref(part) for part in (engine, runner, runner.model.layers[0].mlp)]
            del engine, runner
            if by == "hand":
                await host.unload()
            await reach(host, "unloaded")
            async with host._memory:  # it has gone
                assert [ref() for ref in held] == [None] * 3
        await host.close()
