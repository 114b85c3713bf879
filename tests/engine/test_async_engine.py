"""AsyncEngine on the fake runner: streams, aborts, refusals, death."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import EngineDead, InvalidRequest, PromptTooLong, QueueFull
from engine.outputs import RequestOutput
from engine.types import Delta, Finished, FinishReason, Request, SamplingParams, Started
from tests.engine.fake_runner import ByteTokenizer, FakeRunner, fake_info


@asynccontextmanager
async def fake_engine(step_s: float = 0.0, max_model_len: int = 256, **knobs) -> AsyncIterator[AsyncEngine]:
    config = EngineConfig(debug_checks=True, **knobs)
    runner, tokenizer = FakeRunner(200, 4, max_model_len, step_s=step_s), ByteTokenizer()
    info = fake_info(runner)
    engine = AsyncEngine(lambda emit: EngineCore(config, runner, tokenizer, emit), tokenizer, None, info, config)
    try:
        yield engine
    finally:
        await engine.close()


async def until_idle(engine: AsyncEngine) -> None:
    for _ in range(200):
        stats = await engine.stats()
        if stats.n_running == stats.n_waiting == stats.n_used == 0:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"still busy: {stats}")


async def test_a_stream_ends_with_one_finished_event() -> None:
    async with fake_engine() as engine:
        stream = engine.submit(list(b"hello"), SamplingParams(max_tokens=5))
        events = [event async for event in stream]
    assert isinstance(events[0], Started) and isinstance(events[-1], Finished)
    assert all(isinstance(event, Delta) for event in events[1:-1])
    assert events[-1].usage.n_output == 5


async def test_many_streams_at_once_all_finish_and_leave_nothing_behind() -> None:
    async with fake_engine() as engine:

        async def one(i: int) -> RequestOutput:
            prompt = list(b"a common beginning " + bytes([97 + i % 26]))
            output = RequestOutput.empty(prompt, 1)
            async for event in engine.submit(prompt, SamplingParams(max_tokens=20)):
                output.add(event)
            return output

        outputs = await asyncio.gather(*(one(i) for i in range(100)))
        assert all(len(output.outputs[0].token_ids) == 20 for output in outputs)
        assert sum(output.usage.n_cached > 0 for output in outputs) >= 99
        await until_idle(engine)


async def test_closing_a_stream_early_aborts_the_request() -> None:
    async with fake_engine(step_s=0.002) as engine:
        stream = engine.submit(list(b"hello"), SamplingParams(max_tokens=200))
        async for event in stream:
            if isinstance(event, Delta):
                break
        await stream.aclose()
        await until_idle(engine)
        assert [event async for event in stream] == []


async def test_abort_still_delivers_the_terminal_event() -> None:
    async with fake_engine(step_s=0.002) as engine:
        stream = engine.submit(list(b"hello"), SamplingParams(max_tokens=200))
        engine.abort(stream.uid)
        events = [event async for event in stream]
        assert events[-1].reason is FinishReason.ABORT


async def test_close_ends_live_streams_with_an_error_that_says_why() -> None:
    async with fake_engine(step_s=0.002) as engine:
        stream = engine.submit(list(b"hello"), SamplingParams(max_tokens=200))
        await anext(stream)
    events = [event async for event in stream]
    assert events[-1].reason is FinishReason.ERROR and "unloaded" in events[-1].error
    with pytest.raises(EngineDead):
        engine.submit(list(b"hello"), SamplingParams())


@pytest.mark.parametrize(
    ("field", "params"),
    [
        ("temperature", {"temperature": float("nan")}),
        ("temperature", {"temperature": -1.0}),
        ("top_p", {"top_p": 0.0}),
        ("top_p", {"top_p": 1.5}),
        ("top_k", {"top_k": -2}),
        ("n", {"n": 0}),
        ("max_tokens", {"max_tokens": 0}),
        ("min_tokens", {"min_tokens": 9, "max_tokens": 8}),
        ("logprobs", {"logprobs": 10_000}),
        ("logit_bias.9999", {"logit_bias": {9999: 1.0}}),
        ("stop_token_ids", {"stop_token_ids": (-1,)}),
        ("stop", {"stop": ("",)}),
        ("seed", {"seed": 2**70}),
    ],
)
async def test_a_value_out_of_range_is_refused_by_name(field: str, params: dict) -> None:
    async with fake_engine() as engine:
        with pytest.raises(InvalidRequest) as refused:
            engine.submit(list(b"hello"), SamplingParams(**params))
        assert refused.value.param == field
        await until_idle(engine)


async def test_a_prompt_that_fills_the_window_is_refused_with_the_numbers() -> None:
    async with fake_engine(max_model_len=32) as engine:
        with pytest.raises(PromptTooLong, match=r"maximum context length is 32 tokens.*resulted in 32 tokens"):
            engine.submit([97] * 32, SamplingParams())
        with pytest.raises(InvalidRequest, match="empty"):
            engine.submit([], SamplingParams())
        with pytest.raises(InvalidRequest, match="vocabulary"):
            engine.submit([97, 100_000], SamplingParams())


async def test_a_full_queue_refuses_and_takes_again_once_there_is_room() -> None:
    async with fake_engine(step_s=0.002, max_num_seqs=1, max_waiting=1) as engine:
        streams = [engine.submit(list(b"hello"), SamplingParams(max_tokens=3)) for _ in range(2)]
        with pytest.raises(QueueFull):
            engine.submit(list(b"hello"), SamplingParams())
        for stream in streams:
            assert [event async for event in stream]
        assert [event async for event in engine.submit(list(b"hello"), SamplingParams(max_tokens=1))]


async def test_observers_see_every_event() -> None:
    async with fake_engine() as engine:
        seen = []
        engine.observers.append(seen.append)
        events = [event async for event in engine.submit(list(b"hello"), SamplingParams(max_tokens=3))]
        assert seen == events


async def test_an_observer_that_fails_harms_nobody() -> None:
    async with fake_engine() as engine:
        engine.observers.append(lambda event: 1 / 0)
        events = [event async for event in engine.submit(list(b"hello"), SamplingParams(max_tokens=3))]
        assert isinstance(events[-1], Finished) and engine.n_live == 0


@pytest.mark.parametrize("owned", [True, False])
async def test_a_broken_law_kills_the_engine_loudly_and_ends_every_request(owned: bool) -> None:
    async with fake_engine(step_s=0.002) as engine:
        streams = [engine.submit(list(b"hello" * i), SamplingParams(max_tokens=200)) for i in (1, 2)]
        for stream in streams:
            await anext(stream)
        engine._core.kv.memories[0].pool.blocks[engine._core.scheduler.running[0].tables[0][0] if owned else 150].refs += 7
        for stream in streams:
            events = [event async for event in stream]
            assert events[-1].reason is FinishReason.ERROR and "has stopped" in events[-1].error
        while engine.is_alive:
            await asyncio.sleep(0.005)
        with pytest.raises(EngineDead):
            await engine.stats()


async def test_a_request_that_comes_while_the_engine_closes_is_refused_or_ended() -> None:
    async with fake_engine(step_s=0.002) as engine:
        engine._core.stop()
        ended = 0
        with pytest.raises(EngineDead):
            while True:
                stream = engine.submit(list(b"hello"), SamplingParams(max_tokens=5))
                ended += (await asyncio.wait_for(anext(stream), 5)).reason is FinishReason.ERROR
        engine.abort(0)


async def test_an_id_that_only_the_tokenizer_knows_is_refused() -> None:
    async with fake_engine() as engine:
        engine.info = structs.replace(engine.info, n_vocab=99)
        with pytest.raises(InvalidRequest, match="vocabulary of 99"):
            engine.submit([100], SamplingParams())


async def test_is_live_knows_a_request_from_its_first_moment_to_its_last() -> None:
    async with fake_engine() as engine:
        stream = engine.submit(list(b"hello"), SamplingParams(max_tokens=3))
        assert engine.is_live(stream.uid) and not engine.is_live(stream.uid + 1)
        assert [event async for event in stream] and not engine.is_live(stream.uid)


async def test_what_is_fetched_ahead_is_awaited_and_the_answer_is_the_same() -> None:
    async def answer(engine: AsyncEngine) -> RequestOutput:
        output = RequestOutput.empty([], 1)
        async for event in engine.submit(list(b"hello"), SamplingParams(max_tokens=5, temperature=0)):
            output.add(event)
        return output

    async with fake_engine() as engine:
        alone = await answer(engine)
        seen = []

        async def ahead(request: Request) -> None:
            await asyncio.sleep(0.05)
            seen.append((request.prompt_token_ids, (await engine.stats()).n_waiting))

        engine.ahead = ahead
        fetched = await answer(engine)
        assert seen == [(list(b"hello"), 1)] and engine.n_live == 0
        assert fetched.outputs[0].text == alone.outputs[0].text


async def test_what_fails_ahead_is_computed_here(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_engine() as engine:

        async def ahead(_: Request) -> None:
            raise RuntimeError("the peer is mad")

        engine.ahead = ahead
        events = [event async for event in engine.submit(list(b"hello"), SamplingParams(max_tokens=5))]
        assert events[-1].reason is FinishReason.STOP and "the peer is mad" in caplog.text


@pytest.mark.parametrize("end", ["abort", "aclose", "close", "die"])
async def test_a_request_that_waits_for_what_is_fetched_ends_as_any_other(end: str) -> None:
    async with fake_engine() as engine:
        cancelled = asyncio.Event()

        async def ahead(_: Request) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                cancelled.set()

        engine.ahead = ahead
        observed = []
        engine.observers.append(observed.append)
        stream = engine.submit(list(b"hello"), SamplingParams(max_tokens=5))
        assert engine.n_live == 1 and engine.is_live(stream.uid)
        await asyncio.sleep(0.01)
        if end == "die":
            engine._core.stop()
            await asyncio.to_thread(engine._thread.join)
            stream.abort()
        elif end == "close":
            await engine.close()
        else:
            stream.abort() if end == "abort" else await stream.aclose()
            await until_idle(engine)
        await asyncio.wait_for(cancelled.wait(), 5)
        for _ in range(200):
            if not engine.n_live:
                break
            await asyncio.sleep(0.005)
        terminals = [event for event in observed if isinstance(event, Finished)]
        assert [event.reason for event in terminals] == [FinishReason.ERROR if end in ("close", "die") else FinishReason.ABORT]
        assert terminals[0].usage.n_prompt == 5 and engine.n_live == 0
        if end != "aclose":
            events = [event async for event in stream]
            assert isinstance(events[-1], Finished)


async def test_a_question_is_answered_between_two_steps() -> None:
    async with fake_engine() as engine:
        assert await engine.ask(lambda core: len(core.kv.memories[0].pool.blocks)) == 200
