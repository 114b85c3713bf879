"""Several engines in one frame: counts add up, maps follow each other, and each request keeps its model."""

from __future__ import annotations

import pytest
from msgspec import structs

from app.stats.sampler import Sampler
from app.stats.sources import joined
from engine.stats import EngineStats
from tests.app.stats.fakes import Clock, FakeEngine, FakeHost, FakePool, finished, request, started, stats, token
from tests.app.stats.test_compose import different_stats

FREE, USED = (0, -1), (1, 7)


def test_one_engines_figures_are_its_own_and_none_are_none() -> None:
    one = different_stats()
    assert joined([one]) is one and joined([]) is None


def test_every_figure_is_a_sum_or_what_is_shared() -> None:
    one = different_stats()
    both = joined([one, one])
    assert both is not None
    shared = {"time_s", "disk_bytes", "disk_most_bytes", "last_step_s", "block_size"}
    for name in EngineStats.__struct_fields__:
        value = getattr(one, name)
        if isinstance(value, int | float):
            assert getattr(both, name) == (value if name in shared else 2 * value), name
    assert all(getattr(both.counters, name) == 2 * getattr(one.counters, name) for name in one.counters.__struct_fields__)
    assert both.waste == one.waste


@pytest.fixture
async def two():
    clock = Clock()
    hosts = FakeHost(), FakeHost()
    hosts[1].name = "other"
    engines = [FakeEngine(stats(clock.now, [FREE, USED], [request(7)])), FakeEngine(stats(clock.now, [FREE] * 3, [request(8)]))]
    sampler = Sampler(FakePool(*hosts), control="open", clock=clock, wall_clock=lambda: clock.now)
    yield sampler, hosts, engines, clock
    await sampler.stop()


async def test_a_frame_has_both_models_and_whose_each_request_is(two) -> None:
    sampler, hosts, engines, _ = two
    for host, engine in zip(hosts, engines, strict=True):
        host.become_ready(engine)
    await sampler.sample()
    frame = sampler.frame
    assert [model.name for model in frame.models] == ["tiny", "other"] and frame.model is frame.models[0]
    assert {row.uid: row.model for row in frame.requests} == {7: "tiny", 8: "other"}
    assert frame.totals.n_blocks == 5 == sum(run.count for run in frame.blocks) and frame.totals.n_running == 2


async def test_the_loaded_one_is_shown_first_and_one_that_waits_says_for_what(two) -> None:
    sampler, hosts, engines, _ = two
    hosts[1].become_ready(engines[1])
    hosts[0].state, hosts[0].waits_for = "waiting", ("other",)
    await sampler.sample()
    assert [(model.name, model.state) for model in sampler.frame.models] == [("other", "ready"), ("tiny", "waiting")]
    assert sampler.frame.models[1].waits_for == ("other",)


async def test_what_ran_on_a_model_that_goes_has_failed_and_nothing_else(two) -> None:
    sampler, hosts, engines, clock = two
    for host, engine in zip(hosts, engines, strict=True):
        host.become_ready(engine)
    engines[0].emit(started(7), token(7))
    engines[1].emit(started(8), token(8))
    await sampler.sample()
    hosts[0].state = "unloaded"
    for callback in hosts[0].on_unload:
        callback(engines[0])
    clock.now += 1
    await sampler.sample()
    assert {row.uid: row.state for row in sampler.frame.requests} == {7: "failed", 8: "running"}
    assert {row.uid: row.model for row in sampler.frame.requests} == {7: "tiny", 8: "other"}
    engines[1].now = structs.replace(engines[1].now, requests=[])
    engines[1].emit(finished(8))
    await sampler.sample()
    assert {row.uid: row.state for row in sampler.frame.requests} == {7: "failed", 8: "completed"}


async def test_an_abort_goes_to_the_engine_that_has_the_request(two) -> None:
    sampler, hosts, engines, _ = two
    for host, engine in zip(hosts, engines, strict=True):
        host.become_ready(engine)
    await sampler.sample()
    assert sampler.abort(8) and engines[1].aborted == [8] and engines[0].aborted == [] and not sampler.abort(9)
