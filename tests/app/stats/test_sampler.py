"""The sampler: never waits for a long step, outlives the model, and asks little when nobody listens."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from app.stats import sampler as sampler_module
from app.stats.compose import MAX_WAITING_ROWS
from app.stats.frames import HISTORY_S
from app.stats.sampler import Sampler
from engine.errors import EngineDead
from engine.types import FinishReason
from tests.app.stats.fakes import Clock, FakeEngine, FakeHost, FakePool, finished, request, started, stats, token

FREE = (0, -1)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
async def sampler(host, clock):
    sampler = Sampler(FakePool(host), control="open", clock=clock, wall_clock=lambda: clock.now + 1e6)
    yield sampler
    await sampler.stop()


@pytest.fixture
def engine(clock):
    return FakeEngine(stats(clock.now, [FREE] * 8))


async def test_a_frame_tells_how_far_loading_is(sampler):
    await sampler.sample()
    assert (sampler.frame.model.state, sampler.frame.model.progress) == ("loading", 0.25)
    assert sampler.frame.blocks == ()


async def test_a_failed_load_is_shown_with_its_reason(sampler, host):
    host.state, host.error = "failed", EngineDead("no such file")
    await sampler.sample()
    assert (sampler.frame.model.state, sampler.frame.model.error) == ("failed", "no such file")


async def test_a_ready_engine_fills_the_frame(sampler, host, engine, clock):
    engine.now = stats(clock.now, [(1, 5), (1, 5), (2, 5), FREE], [request(5)], output_tokens=9)
    host.become_ready(engine)
    await sampler.sample()
    frame = sampler.frame
    assert frame.model.state == "ready" and frame.model.quantization == "Q4_1"
    assert (frame.totals.n_used, frame.totals.n_shared, frame.totals.output_tokens) == (3, 1, 9)
    assert [(run.state, run.owner, run.count) for run in frame.blocks] == [(1, 5, 2), (2, 5, 1), (0, -1, 1)]
    assert [(row.uid, row.state, row.arrived_s) for row in frame.requests] == [(5, "running", clock.now + 1e6 - 2.0)]


async def test_a_long_step_ages_the_figures_but_delays_no_frame(sampler, host, engine, clock, monkeypatch):
    monkeypatch.setattr(sampler_module, "_PATIENCE_S", 0.001)
    host.become_ready(engine)
    await sampler.sample()
    engine.busy = asyncio.Event()
    for age in (1.0, 2.0):
        clock.now += 1.0
        await sampler.sample()
        assert sampler.frame.age_s == age
        assert sampler.frame.totals.n_blocks == 8
    assert engine.n_asked == 2, "a question still open must not be asked again"
    engine.busy.set()
    await sampler.sample()
    assert sampler.frame.age_s == 0.0


async def test_a_dead_engine_is_shown_and_its_successor_taken(sampler, host, engine, clock):
    host.become_ready(engine)
    await sampler.sample()
    engine.emit(started(1))
    engine.error = EngineDead("out of memory")
    await sampler.sample()
    assert (sampler.frame.model.state, sampler.frame.model.error) == ("failed", "out of memory")
    host.state = "loading"
    await sampler.sample()
    assert sampler.frame.model.state == "loading"
    assert [row.state for row in sampler.frame.requests] == ["failed"]
    successor = FakeEngine(stats(clock.now, [FREE] * 4))
    host.become_ready(successor)
    await sampler.sample()
    assert sampler.frame.model.state == "ready" and sampler.frame.totals.n_blocks == 4
    assert not engine.observers and len(successor.observers) == 1


async def test_an_engine_that_comes_while_another_is_asked_is_asked_next(sampler, host, engine, clock):
    host.become_ready(engine)
    engine.busy = asyncio.Event()
    sampling = asyncio.create_task(sampler.sample())
    while not engine.n_asked:
        await asyncio.sleep(0)
    successor = FakeEngine(stats(clock.now, [FREE] * 4))
    host.become_ready(successor)
    await sampling
    await sampler.sample()
    assert sampler.frame.totals.n_blocks == 4


async def test_an_unloaded_model_is_neither_used_nor_loaded(sampler, host, engine):
    host.become_ready(engine)
    await sampler.sample()
    host.state = "unloaded"
    await sampler.sample()
    assert sampler.frame.model.state == "unloaded" and sampler.frame.blocks == ()


async def test_rates_come_from_the_counters_of_about_a_second(sampler, host, engine, clock):
    host.become_ready(engine)
    for sample in range(9):
        counters = {"output_tokens": 5 * sample, "prompt_tokens": 25 * sample, "n_steps": sample, "busy_s": sample / 8}
        engine.now = stats(clock.now, [FREE], **counters)
        await sampler.sample()
        clock.now += 0.25
    rates = sampler.frame.rates
    assert (rates.output_tok_s, rates.prompt_tok_s, rates.steps_s, rates.busy) == (20.0, 100.0, 4.0, 0.5)


async def test_counters_that_fell_belong_to_another_engine(sampler, host, engine, clock):
    host.become_ready(engine)
    for tokens in (1000, 0):
        engine.now = stats(clock.now, [FREE], output_tokens=tokens)
        await sampler.sample()
        clock.now += 0.25
    assert sampler.frame.rates.output_tok_s == 0.0


async def test_an_ended_answer_stays_a_few_seconds_under_its_clients_id(sampler, host, engine, clock):
    host.become_ready(engine)
    engine.now = stats(clock.now, [(1, 3)], [request(3)])
    await sampler.sample()
    engine.emit(started(3), token(3), token(3, finish=FinishReason.STOP), finished(3))
    engine.now = stats(clock.now, [FREE])
    await sampler.sample()
    (row,) = sampler.frame.requests
    assert (row.id, row.state, row.n_output, row.n_blocks) == ("req-3", "completed", 2, 0)
    clock.now += 10
    await sampler.sample()
    assert sampler.frame.requests == ()


async def test_an_answer_between_two_samples_is_not_lost(sampler, host, engine):
    host.become_ready(engine)
    await sampler.sample()
    engine.emit(started(8), token(8, finish=FinishReason.STOP), finished(8))
    await sampler.sample()
    assert [(row.uid, row.id, row.state) for row in sampler.frame.requests] == [(8, "", "completed")]


async def test_a_long_queue_is_counted_not_listed(sampler, host, engine, clock):
    host.become_ready(engine)
    engine.now = stats(clock.now, [FREE], [request(uid, "waiting") for uid in range(MAX_WAITING_ROWS + 50)])
    await sampler.sample()
    assert len(sampler.frame.requests) == MAX_WAITING_ROWS and sampler.frame.n_hidden == 50


async def test_history_ends_after_its_span(sampler, clock):
    for _ in range(int(HISTORY_S) + 20):
        await sampler.sample()
        clock.now += 1.0
    history = sampler.key_frame().history
    assert len(history) == HISTORY_S + 1
    assert history[-1].time_s - history[0].time_s == HISTORY_S


async def test_a_sampler_nobody_listens_to_is_slow_and_wakes_at_once(host, engine, monkeypatch):
    monkeypatch.setattr(sampler_module, "QUIET_PERIOD_S", 30.0)
    monkeypatch.setattr(sampler_module, "PERIOD_S", 0.01)
    sampler = Sampler(FakePool(host), control="open")
    host.become_ready(engine)
    await sampler.start()
    try:
        await sampler.next_frame(0)
        await asyncio.sleep(0.05)
        assert sampler.frame.seq == 1
        with sampler.listening():
            await asyncio.wait_for(sampler.next_frame(5), 5)
        quiet = sampler.frame.seq
        await asyncio.sleep(0.05)
        assert sampler.frame.seq <= quiet + 1
    finally:
        await sampler.stop()


async def test_a_sample_that_breaks_does_not_end_the_feed(host, engine, monkeypatch, caplog):
    monkeypatch.setattr(sampler_module, "PERIOD_S", 0.01)
    sampler = Sampler(FakePool(host), control="open")
    host.become_ready(engine)
    engine.now = msgspec.structs.replace(stats(0.0, [FREE]), owners=[])
    await sampler.start()
    try:
        with sampler.listening():
            while "a sample of the statistics failed" not in caplog.text:
                await asyncio.sleep(0.01)
            engine.now = stats(0.0, [FREE])
            assert (await asyncio.wait_for(sampler.next_frame(0), 5)).totals.n_blocks == 1
    finally:
        await sampler.stop()
