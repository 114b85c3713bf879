"""Several models that do not all fit: who waits, who leaves, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.errors import ModelFailed
from engine.errors import EngineDead, ModelLoadError, QueueFull
from tests.app.models.fakes import Small

TURN_S = 0.15


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.models.room.TURN_S", TURN_S)
    monkeypatch.setattr("app.models.room._LOOK_S", 0.002)
    monkeypatch.setattr("app.models.host._WATCH_S", 0.005)


@contextlib.asynccontextmanager
async def running(small: Small) -> AsyncIterator[Small]:
    """With the main model loaded."""
    async with asyncio.timeout(20):
        await small.pool.start()
        while small.pool.main.state != "ready":
            await asyncio.sleep(0.001)
        yield small
        await small.pool.close()


async def answer(small: Small, name: str, *, ended: asyncio.Event | None = None) -> Any:
    """A request that is queued, and answers until it has `ended`."""
    async with small.pool.use(name) as engine:
        engine.n_live += ended is not None
    if ended is not None:
        await ended.wait()
        assert not engine.closed, "an answer was cut"
        engine.n_live -= 1
    return engine


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def test_two_that_fit_stay_together() -> None:
    async with running(Small(100, {"a": 40, "b": 40})) as small:
        await answer(small, "b")
        await answer(small, "a")
        assert small.loaded == {"a", "b"} and small.loads["a"].n_begun == small.loads["b"].n_begun == 1


async def test_a_model_waits_for_the_answer_of_another_then_takes_its_place() -> None:
    async with running(Small(100, {"a": 60, "b": 60})) as small:
        ended = asyncio.Event()
        first = asyncio.create_task(answer(small, "a", ended=ended))
        second = asyncio.create_task(answer(small, "b"))
        await until(lambda: small.hosts["b"].state == "waiting")
        assert small.hosts["b"].waits_for == ("a",) and small.loaded == {"a"}
        await asyncio.sleep(2 * TURN_S)
        assert small.loaded == {"a"} and not second.done()
        ended.set()
        await first
        await second
        assert small.loaded == {"b"} and small.engine("a").closed and small.hosts["b"].waits_for == ()


async def test_the_least_recently_used_leaves() -> None:
    async with running(Small(100, {"a": 40, "b": 40, "c": 40})) as small:
        await answer(small, "b")
        await answer(small, "a")
        await answer(small, "c")
        assert small.loaded == {"a", "c"}
        await answer(small, "b")
        assert small.loaded == {"b", "c"}


async def test_an_idle_model_leaves_before_one_in_use() -> None:
    async with running(Small(100, {"a": 40, "b": 40, "c": 40})) as small:
        ended = asyncio.Event()
        first = asyncio.create_task(answer(small, "a", ended=ended))
        await answer(small, "b")  # used later than a, but not any more
        await answer(small, "c")
        assert small.loaded == {"a", "c"}
        ended.set()
        await first


async def test_only_as_many_leave_as_must() -> None:
    async with running(Small(100, {"a": 30, "b": 30, "c": 30, "d": 60})) as small:
        for name in "bc":
            await answer(small, name)
        await answer(small, "d")
        assert small.loaded == {"c", "d"}


async def test_a_model_is_not_squeezed_in_where_alone_it_had_a_longer_window() -> None:
    async with running(Small(100, {"a": 40, "b": 40}, narrow=("b",))) as small:
        await answer(small, "b")
        assert small.loaded == {"b"}


async def test_an_engine_that_is_held_does_not_leave_though_nothing_runs_yet() -> None:
    async with running(Small(100, {"a": 60, "b": 60})) as small:
        async with small.pool.use("a") as engine:  # a long prompt is tokenised, say
            other = asyncio.create_task(answer(small, "b"))
            await asyncio.sleep(2 * TURN_S)
            assert not engine.closed and not other.done()
        await other
        assert engine.closed


@pytest.mark.parametrize("busy", ["a", "ab"])
async def test_requests_without_end_for_one_model_do_not_starve_another(busy: str) -> None:
    """Each model in memory always has an answer running, the next beginning before the last ends."""
    sizes = {"a": 45, "b": 45, "c": 95}
    async with running(Small(100, sizes)) as small:
        stop = False

        async def work(name: str) -> None:
            """Answers that overlap."""
            under_way: list[tuple[asyncio.Event, asyncio.Task[Any]]] = []
            while not stop:
                ended = asyncio.Event()
                under_way.append((ended, asyncio.create_task(answer(small, name, ended=ended))))
                await asyncio.sleep(0.02)
                if len(under_way) > 1:
                    under_way[0][0].set()
                    await under_way.pop(0)[1]
            for ended, task in under_way:
                ended.set()
                await task

        workers = [asyncio.create_task(work(name)) for name in busy]
        await until(lambda: all(name in small.loaded for name in busy))
        for _ in range(3):
            await asyncio.wait_for(answer(small, "c"), 3)
            before = {name: small.loads[name].n_begun for name in busy}
            await until(lambda before=before: any(small.loads[name].n_begun > n for name, n in before.items()))
        stop = True
        await asyncio.gather(*workers)


async def test_while_its_turn_lasts_a_model_takes_more_requests_though_another_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.models.room.TURN_S", 30)
    async with running(Small(100, {"a": 60, "b": 60})) as small:
        ended = asyncio.Event()
        first = asyncio.create_task(answer(small, "a", ended=ended))
        other = asyncio.create_task(answer(small, "b"))
        await until(lambda: small.hosts["b"].state == "waiting")
        await asyncio.wait_for(answer(small, "a"), 1)
        assert not other.done()
        ended.set()
        await first
        await other


async def test_after_its_turn_requests_wait_until_the_other_had_its_own() -> None:
    async with running(Small(100, {"a": 60, "b": 60})) as small:
        ended = asyncio.Event()
        first = asyncio.create_task(answer(small, "a", ended=ended))
        await asyncio.sleep(TURN_S)
        order: list[str] = []
        other = asyncio.create_task(answer(small, "b"))
        other.add_done_callback(lambda _: order.append("b"))
        await until(lambda: small.hosts["b"].state == "waiting")
        await until(lambda: small.hosts["a"].would_wait)
        again = asyncio.create_task(answer(small, "a"))
        again.add_done_callback(lambda _: order.append("a"))
        await asyncio.sleep(0.05)
        assert not again.done() and not other.done()
        ended.set()
        await asyncio.gather(first, other, again)
        assert order == ["b", "a"] and small.loads["a"].n_begun == 2


async def test_who_leaves_while_waiting_is_dropped_and_the_other_model_goes_on() -> None:
    async with running(Small(100, {"a": 60, "b": 60})) as small:
        ended = asyncio.Event()
        first = asyncio.create_task(answer(small, "a", ended=ended))
        await asyncio.sleep(TURN_S)
        other = asyncio.create_task(answer(small, "b"))
        await until(lambda: small.hosts["a"].would_wait)
        other.cancel()
        await until(lambda: small.hosts["b"].state == "unloaded")
        await asyncio.wait_for(answer(small, "a"), 1)  # it need not leave any more
        ended.set()
        await first
        await asyncio.sleep(0.02)
        assert small.loaded == {"a"} and small.loads["b"].n_begun == 0


async def test_who_was_told_to_leave_and_need_not_any_more_takes_requests_again() -> None:
    async with running(Small(100, {"a": 35, "b": 35, "c": 30, "d": 60})) as small:
        for name in "bc":
            await answer(small, name)
        small.engine("a").n_live = small.engine("b").n_live = 1
        other = asyncio.create_task(answer(small, "d"))
        await until(lambda: small.hosts["d"].waits_for == ("c", "a"))
        await until(lambda: small.hosts["c"].would_wait)
        small.engine("c").n_live = 1  # it began before
        await small.hosts["a"].unload()  # for another reason: b is enough now, and comes before c
        await until(lambda: small.hosts["d"].waits_for == ("b",))
        await asyncio.wait_for(answer(small, "c"), 3)
        small.engine("b").n_live = 0
        await other
        assert small.loaded == {"c", "d"}


async def test_a_load_that_nobody_waits_for_any_more_when_its_turn_comes_is_left_out() -> None:
    async with running(Small(100, {"a": 30, "b": 30, "c": 30})) as small:
        small.loads["b"].go.clear()
        slow = asyncio.create_task(answer(small, "b"))
        await until(lambda: small.loads["b"].n_begun)
        other = asyncio.create_task(answer(small, "c"))
        await until(lambda: small.hosts["c"].state == "waiting")
        other.cancel()
        small.loads["b"].go.set()
        await slow
        await until(lambda: small.hosts["c"].state == "unloaded")
        assert small.loads["c"].n_begun == 0


async def test_what_was_asked_for_by_hand_loads_though_nobody_waits() -> None:
    async with running(Small(100, {"a": 60, "b": 60})) as small:
        ended = asyncio.Event()
        first = asyncio.create_task(answer(small, "a", ended=ended))
        await asyncio.sleep(0)
        small.hosts["b"].load()
        await until(lambda: small.hosts["b"].state == "waiting")
        await asyncio.sleep(0.05)
        ended.set()
        await first
        await until(lambda: small.loaded == {"b"})


async def test_a_model_that_cannot_run_at_all_drives_out_nobody() -> None:
    async with running(Small(100, {"a": 40, "b": 200})) as small:
        with pytest.raises(ModelFailed, match="b needs 200"):
            await answer(small, "b")
        assert small.loaded == {"a"} and not small.engine("a").closed and small.loads["b"].n_begun == 0


async def test_after_a_load_that_fails_the_one_that_left_for_it_comes_back() -> None:
    async with running(Small(100, {"a": 60, "b": 60})) as small:
        small.loads["b"].error = ModelLoadError("The file ends early.")
        with pytest.raises(ModelFailed, match="The file ends early"):
            await answer(small, "b")
        assert small.hosts["b"].state == "failed" and small.hosts["b"].error is not None
        await until(lambda: small.loaded == {"a"})
        assert small.loads["a"].n_begun == 2


async def test_a_failed_model_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.models.host._RETRY_S", 0.05)
    async with running(Small(100, {"a": 40, "b": 40})) as small:
        small.loads["b"].error = ModelLoadError("The file ends early.")
        for _ in range(2):
            with pytest.raises(ModelFailed):
                await answer(small, "b")
        assert small.loads["b"].n_begun == 1
        small.loads["b"].error = None
        await until(lambda: small.hosts["b"].may_retry)
        await answer(small, "b")
        assert small.hosts["b"].state == "ready" and small.hosts["b"].error is None


async def test_not_more_wait_for_a_model_than_may() -> None:
    async with running(Small(100, {"a": 60, "b": 60}, max_waiting=2)) as small:
        ended = asyncio.Event()
        first = asyncio.create_task(answer(small, "a", ended=ended))
        waiting = [asyncio.create_task(answer(small, "b")) for _ in range(2)]
        await until(lambda: small.hosts["b"].n_waiting == 2)
        with pytest.raises(QueueFull, match="2 requests wait for the model b"):
            await answer(small, "b")
        ended.set()
        await asyncio.gather(first, *waiting)


async def test_what_is_being_unloaded_has_gone_before_another_is_loaded() -> None:
    async with running(Small(100, {"a": 60, "b": 60})) as small:
        engine = small.engine("a")
        engine.may_close.clear()
        unloading = asyncio.create_task(small.hosts["a"].unload())
        await asyncio.sleep(0)
        other = asyncio.create_task(answer(small, "b"))
        await asyncio.sleep(0.05)
        assert small.loads["b"].n_begun == 0
        engine.may_close.set()
        await asyncio.gather(unloading, other)


async def test_a_model_that_comes_back_while_it_goes_drives_out_nobody() -> None:
    async with running(Small(100, {"a": 45, "b": 45})) as small:
        await answer(small, "b")
        engine = small.engine("a")
        engine.may_close.clear()
        unloading = asyncio.create_task(small.hosts["a"].unload())
        await asyncio.sleep(0)
        again = asyncio.create_task(answer(small, "a"))
        await asyncio.sleep(0.05)
        engine.may_close.set()
        await asyncio.gather(unloading, again)
        assert small.loaded == {"a", "b"} and small.loads["b"].n_begun == 1


async def test_loads_come_one_after_the_other() -> None:
    async with running(Small(100, {"a": 30, "b": 30, "c": 30})) as small:
        small.loads["b"].go.clear()
        tasks = [asyncio.create_task(answer(small, name)) for name in "bc"]
        await asyncio.sleep(0.05)
        assert (small.loads["b"].n_begun, small.loads["c"].n_begun) == (1, 0)
        small.loads["b"].go.set()
        await asyncio.gather(*tasks)
        assert small.loaded == {"a", "b", "c"}


async def test_stopping_ends_the_wait() -> None:
    small = Small(100, {"a": 60, "b": 60})
    async with running(small):
        ended = asyncio.Event()
        first = asyncio.create_task(answer(small, "a", ended=ended))
        other = asyncio.create_task(answer(small, "b"))
        await until(lambda: small.hosts["b"].state == "waiting")
        draining = asyncio.create_task(small.pool.drain(5))
        await asyncio.sleep(0.02)
        ended.set()
        await asyncio.gather(first, draining)
        with pytest.raises(EngineDead, match="stopping"):
            await other
        assert small.loads["b"].n_begun == 0 and small.loaded == set()
