"""The feed: a key frame equals the deltas before it, and a slow listener skips frames instead of queueing them."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest
from httpx import Response
from httpx_sse import EventSource, ServerSentEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from app.stats import stream
from app.stats.sampler import Sampler
from engine.types import FinishReason
from tests.app.stats.fakes import Clock, FakeEngine, FakeHost, FakePool, finished, request, started, stats, token
from tui.feed.model import KeyFrame
from tui.feed.state import FeedState

POOL = 12


def event_of(data: bytes) -> ServerSentEvent:
    (event,) = EventSource(Response(200, headers={"content-type": "text/event-stream"}, content=data)).iter_sse()
    return event


class Feed:
    """A sampler on fakes, and one listener's state."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.host = FakeHost()
        self.engine = FakeEngine(stats(self.clock.now, [(0, -1)] * POOL))
        self.sampler = Sampler(FakePool(self.host), control="open", clock=self.clock, wall_clock=lambda: self.clock.now + 1e6)
        self.events = stream.events(self.sampler)
        self.state = FeedState()

    async def sample(self, seconds: float = 0.25) -> None:
        self.clock.now += seconds
        await self.sampler.sample()

    async def receive(self) -> str:
        """Take the next event into the state; its kind."""
        event = event_of(await asyncio.wait_for(anext(self.events), 5))
        self.state.apply(event.event, event.data)
        return event.event

    async def close(self) -> None:
        await self.events.aclose()
        await self.sampler.stop()

    @property
    def truth(self) -> KeyFrame:
        """The server's whole state, as a new listener would get it."""
        return msgspec.convert(msgspec.to_builtins(self.sampler.key_frame()), KeyFrame)


@pytest.fixture
async def feed():
    feed = Feed()
    yield feed
    await feed.close()


MAP = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-1, 1, 2, 3])), min_size=POOL, max_size=POOL)
STATUS = st.sampled_from(["waiting", "running", "preempted"])
FIELDS = st.builds(dict, n_output=st.integers(0, 3), n_blocks=st.integers(0, 3), status=STATUS)
REQUESTS = st.dictionaries(st.integers(1, 5), FIELDS)
MOMENT = st.tuples(MAP, REQUESTS, st.sampled_from(["", "end", "unload", "ready", "wait"]), st.integers(0, 9))


@settings(max_examples=60, deadline=None)
@given(st.lists(MOMENT, min_size=1, max_size=8))
def test_a_key_frame_equals_the_deltas_before_it(moments):
    async def scenario() -> None:
        feed = Feed()
        feed.host.become_ready(feed.engine)
        n_deltas = 0
        for blocks, requests, happening, tokens in moments:
            rows = [request(uid, **fields) for uid, fields in requests.items()]
            feed.engine.now = stats(feed.clock.now, blocks, rows, output_tokens=tokens)
            if happening == "end":
                feed.engine.emit(started(2), token(2), finished(2, FinishReason.ABORT))
            elif happening in ("unload", "ready"):
                feed.host.state = {"unload": "unloaded", "ready": "ready"}[happening]
            await feed.sample(20.0 if happening == "wait" else 0.25)
            n_deltas += await feed.receive() == "delta"
            truth = feed.truth
            assert feed.state.frame == truth.frame
            assert tuple(feed.state.history) == truth.history
        if all(m[2] in ("", "end") for m in moments):
            assert n_deltas == len(moments) - 1
        await feed.close()

    asyncio.run(scenario())


async def test_the_first_event_is_a_key_frame_with_the_history(feed):
    for _ in range(4):
        await feed.sample()
    assert await feed.receive() == "key"
    assert len(feed.state.history) == 4


async def test_a_slow_listener_skips_frames_and_gets_a_key_frame(feed):
    feed.host.become_ready(feed.engine)
    await feed.sample()
    await feed.receive()
    for _ in range(50):
        await feed.sample()
    assert await feed.receive() == "key"
    assert feed.state.frame == feed.truth.frame
    waiting = asyncio.ensure_future(anext(feed.events))
    await asyncio.sleep(0)
    assert not waiting.done(), "nothing may have been queued for the slow listener"
    await feed.sample()
    assert event_of(await waiting).event == "delta"


async def test_a_key_frame_comes_again_each_ten_seconds(feed):
    kinds = []
    for _ in range(85):
        await feed.sample()
        kinds.append(await feed.receive())
    assert [place for place, kind in enumerate(kinds) if kind == "key"] == [0, 40, 80]


async def test_a_pool_of_another_size_forces_a_key_frame(feed):
    feed.host.become_ready(feed.engine)
    await feed.sample()
    await feed.receive()
    feed.engine.now = stats(feed.clock.now, [(0, -1)] * (POOL + 1))
    await feed.sample()
    assert await feed.receive() == "key"


async def test_an_idle_delta_is_small(feed):
    feed.host.become_ready(feed.engine)
    await feed.sample()
    await feed.receive()
    await feed.sample()
    data = await anext(feed.events)
    # The process section may change once in a second.
    assert len(data) < 400


async def test_a_listener_that_leaves_is_no_longer_counted(feed):
    await feed.sample()
    await feed.receive()
    assert feed.sampler.n_listeners == 1
    waiting = asyncio.ensure_future(anext(feed.events))
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert feed.sampler.n_listeners == 0
