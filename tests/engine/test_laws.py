"""The laws of DESIGN under random operations: a fake runner with exact KV memory, checks after every step."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from engine.config import EngineConfig
from engine.core import MAX_FAILED_STEPS, EngineCore
from engine.errors import EngineDead, InvalidRequest
from engine.kv.groups import KVGroup
from engine.kv.pins import PINNED_SHARE
from engine.outputs import RequestOutput
from engine.scheduler import _Draft
from engine.types import Event, Finished, FinishReason, Moves, Request, SamplingParams
from tests.engine.fake_connector import FakeConnector
from tests.engine.fake_runner import ByteTokenizer, FakeRunner

BLOCK_SIZE = 4
MAX_LEN = 48
TRUNKS = (b"the same system prompt, again", b"another trunk of text", b"")


def everything(n_blocks: int, n_host_blocks: int, scale: int) -> KVGroup:
    return KVGroup(n_blocks=n_blocks, n_host_blocks=n_host_blocks, block_bytes=1 << 10)


def window(n_blocks: int, n_host_blocks: int, scale: int) -> KVGroup:
    return KVGroup(n_blocks=n_blocks // 2, n_host_blocks=n_host_blocks // 2, block_bytes=1 << 10, window=7 * scale)


def state(n_blocks: int, n_host_blocks: int, scale: int) -> KVGroup:
    return KVGroup(n_blocks=n_blocks // 4, n_host_blocks=n_host_blocks // 4, block_bytes=1 << 12, recurrent=True)


KINDS = {
    "all": (everything,),
    "window": (window,),
    "all, window": (everything, window),
    "all, state": (everything, state),
    "state": (state,),
    "all, window, state": (everything, window, state),
}


class Harness:
    """A core on the fake runner, stepped by hand, that gathers every request's events."""

    def __init__(
        self, n_blocks: int, *, n_host_blocks: int = 0, kinds: str = "all", block_size: int = BLOCK_SIZE, **knobs
    ) -> None:
        self.scale = block_size // BLOCK_SIZE
        max_len = MAX_LEN * self.scale
        groups = tuple(make(n_blocks, n_host_blocks, self.scale) for make in KINDS[kinds])
        self.runner = FakeRunner(n_blocks, block_size, max_len, end_every=9, groups=groups)
        defaults = dict(max_num_seqs=6, max_num_batched_tokens=16 * self.scale, debug_checks=True)
        config = EngineConfig(**{**defaults, **knobs})
        self.connector = FakeConnector(self.runner) if n_host_blocks else None
        self.core = EngineCore(config, self.runner, ByteTokenizer(), self.receive, self.connector)
        self.core._fetch_wait_s = 0.0
        if self.core.exchange is not None:
            self.core.exchange.kept_tokens = 2 * block_size
        self.outputs: dict[int, RequestOutput] = {}
        self.terminals: dict[int, list[Finished]] = {}
        self.requests: dict[int, Request] = {}

    def receive(self, events: list[Event]) -> None:
        for event in events:
            self.outputs[event.uid].add(event)
            if isinstance(event, Finished):
                self.terminals[event.uid].append(event)

    def add(self, prompt: bytes, params: SamplingParams, *, salt: str = "", priority: int = 0, pins: bool = False) -> int:
        """What fills a block of BLOCK_SIZE is stretched to fill one here, but for a few tokens: so answers fill blocks too."""
        stretched = [token_id for token_id in prompt for _ in range(self.scale)]
        request = Request(
            "", stretched[: len(stretched) - self.scale // 8], params, cache_salt=salt, priority=priority, pins=pins
        )
        return self.submit(request)

    def submit(self, request: Request) -> int:
        uid, params = self.core.add(request), request.params
        self.requests[uid] = request
        self.outputs[uid] = RequestOutput.empty(request.prompt_token_ids, params.n)
        self.terminals[uid] = []
        return uid

    def run_to_idle(self, most_steps: int = 5000) -> None:
        self.core.step()
        for _ in range(most_steps):
            if not (self.core.scheduler.has_work or self.core._has_stores):
                break
            if self.connector is not None and self.connector.orders:
                self.connector.happen()
            self.core.step()
        assert not self.core.scheduler.has_work, "the engine did not come to rest"
        self.check_idle()

    def check_idle(self) -> None:
        assert not self.core.groups
        while self.connector is not None and (self.connector.orders or self.core._has_stores):
            self.connector.close()
            self.core.step()
        kv, exchange = self.core.kv, self.core.exchange
        assert exchange is None or exchange.n_settled == exchange._n_asked, "who waits for a handing over waits for ever"
        for memory in kv.memories:
            assert not (memory.host._held or memory.host.reserved), "an idle engine waits for its connector"
            assert kv.pins.n_blocks(memory) <= len(memory.pool.blocks) * PINNED_SHARE
        for uid in list(kv.pins):
            assert kv.pins.unpin(uid) > 0 and not self.terminals[uid][0].error
        for memory in kv.memories:
            assert memory.pool.n_free == len(memory.pool.blocks), "law e: an idle engine holds blocks"
        assert all(len(terminals) == 1 for terminals in self.terminals.values()), "law e: one terminal event each"

    def answers(self, uid: int) -> list[tuple[str, list[int], FinishReason | None]]:
        return [(choice.text, choice.token_ids, choice.finish_reason) for choice in self.outputs[uid].outputs]


def alone(request: Request, block_size: int = BLOCK_SIZE) -> list[tuple[str, list[int], FinishReason | None]]:
    """The request's answers with the engine to itself, nothing cached, nothing cut."""
    harness = Harness(400, block_size=block_size, max_num_batched_tokens=4096, max_num_seqs=64, enable_prefix_caching=False)
    uid = harness.submit(Request("", request.prompt_token_ids, request.params))
    harness.run_to_idle()
    return harness.answers(uid)


class EngineMachine(RuleBasedStateMachine):
    """Add, abort, fork, step, evict, fail, swap, recompute (by a pool that is too small) and lose host memory in any order."""

    def __init__(self, block_size: int, kinds: str) -> None:
        super().__init__()
        self.block_size = block_size
        self.harness = Harness(18, n_host_blocks=9, kinds=kinds, block_size=block_size)
        self.disturbed: set[int] = set()

    @rule(
        trunk=st.sampled_from(TRUNKS),
        tail=st.binary(min_size=1, max_size=12),
        n=st.sampled_from((1, 1, 1, 2, 4)),
        max_tokens=st.integers(1, 30),
        temperature=st.sampled_from((0.0, 1.0)),
        seed=st.integers(0, 3),
        salt=st.sampled_from(("", "", "other")),
        priority=st.sampled_from((0, 0, -1, 1)),
        prompt_logprobs=st.sampled_from((None, None, None, 0)),
        stop=st.sampled_from(((), (), ("a",), ("xy", "q"))),
        best_of=st.sampled_from((None, None, None, 4)),
    )
    def add(self, trunk, tail, n, max_tokens, temperature, seed, salt, priority, prompt_logprobs, stop, best_of) -> None:
        params = SamplingParams(
            n=n, max_tokens=max_tokens, temperature=temperature, seed=seed, prompt_logprobs=prompt_logprobs, stop=stop,
            best_of=best_of,
        )  # fmt: skip
        self.harness.add((trunk + tail)[: MAX_LEN - 1], params, salt=salt, priority=priority)

    @rule(
        trunk=st.sampled_from(TRUNKS),
        tail=st.binary(min_size=1, max_size=12),
        width=st.integers(1, 4),
        max_tokens=st.integers(1, 8),
        priority=st.sampled_from((0, 0, -1, 1)),
        early_stopping=st.booleans(),
    )
    def search(self, trunk, tail, width, max_tokens, priority, early_stopping) -> None:
        params = SamplingParams(beam_width=width, n=width, max_tokens=max_tokens, early_stopping=early_stopping)
        with contextlib.suppress(InvalidRequest):  # beams that could never run together
            self.harness.add((trunk + tail)[: MAX_LEN - 1], params, priority=priority)

    @rule(trunk=st.sampled_from(TRUNKS[:2]), n=st.integers(4, 16), priority=st.sampled_from((0, 1)))
    def pin(self, trunk, n, priority) -> None:
        uid = self.harness.add(trunk[:n], SamplingParams(max_tokens=1, temperature=0), priority=priority, pins=True)
        self.disturbed.add(uid)  # it may be refused

    @rule(data=st.data())
    def unpin(self, data) -> None:
        if pins := sorted(self.harness.core.kv.pins):
            uid = data.draw(st.sampled_from(pins))
            self.harness.core.ask(lambda core: core.kv.pins.unpin(uid), lambda n: None)
            self.harness.core.step()

    @rule(times=st.integers(1, 12))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.harness.core.step()

    @rule(data=st.data())
    def abort(self, data) -> None:
        live = sorted(self.harness.core.groups)
        if live:
            uid = data.draw(st.sampled_from(live))
            self.disturbed.add(uid)
            self.harness.core.abort(uid)
            self.harness.core.step()
            assert uid not in self.harness.core.groups, "an abort takes at most one step"

    @rule()
    def evict(self) -> None:
        self.harness.core.ask(lambda core: core.kv.evict_cached(), lambda n: None)
        self.harness.core.step()

    @rule(copies_are_fast=st.booleans())
    def measure(self, copies_are_fast: bool) -> None:
        """What preemption chooses from."""
        preemption = self.harness.core.preemption
        preemption.prefilled_tokens_per_s, preemption.copied_bytes_per_s = 1.0, 1e9 if copies_are_fast else 1.0

    @rule(data=st.data())
    def lose_a_copy(self, data) -> None:
        """Host memory may be taken for something else at any time between two plans."""
        copies = [(g, key) for g, memory in enumerate(self.harness.core.kv.memories) for key in sorted(memory.host)]
        if copies:
            g, key = data.draw(st.sampled_from(copies))
            self.harness.core.kv.memories[g].host.drop(key)

    @rule(data=st.data(), most=st.sampled_from((None, None, 0, 1, 2)))
    def let_the_connector_work(self, data, most) -> None:
        """In any order, whole or in part: a disk is slow, a peer dies in the middle."""
        connector = self.harness.connector
        if connector.orders:
            connector.happen(data.draw(st.integers(0, len(connector.orders) - 1)), most)

    @rule(data=st.data())
    def hand_over(self, data) -> None:
        """Whatever it knows of, computed or not."""
        core = self.harness.core
        if seqs := [seq for seq in (*core.scheduler.running, *core.scheduler.waiting) if seq.block_keys]:
            keys = data.draw(st.sampled_from(seqs)).block_keys
            core.exchange.hand_over([(g, key) for g in range(len(core.kv.groups)) for key in keys])

    @rule(data=st.data())
    def lose_what_the_connector_has(self, data) -> None:
        if kept := sorted(self.harness.connector.kept):
            self.harness.connector.lose(data.draw(st.sampled_from(kept)))

    @rule()
    def fail_a_step(self) -> None:
        self._fail("fail_next")

    @rule()
    def break_an_answer(self) -> None:
        """All was computed, but what came out for one of the requests is no number."""
        self._fail("break_next")

    def _fail(self, how: str) -> None:
        if self.harness.core._n_failed_steps == MAX_FAILED_STEPS - 1:
            return  # the engine would give up, which test_core has
        setattr(self.harness.runner, how, True)
        before = {uid for uid, terminals in self.harness.terminals.items() if not terminals}
        self.harness.core.step()
        setattr(self.harness.runner, how, False)
        self.disturbed |= {uid for uid in before if self.harness.outputs[uid].error}

    @invariant()
    def laws_hold(self) -> None:
        self.harness.core.scheduler.check()

    def teardown(self) -> None:
        harness = self.harness
        harness.run_to_idle()
        for uid, request in harness.requests.items():
            if uid in self.disturbed:
                continue
            assert harness.answers(uid) == alone(request, self.block_size), "an answer depends on its neighbours"
            if request.params.prompt_logprobs is not None:
                kept = harness.outputs[uid].prompt_logprobs
                assert [p.token_id for p in kept[1:]] == request.prompt_token_ids[1:], "prompt logprobs are out of step"


@pytest.mark.parametrize(
    ("kinds", "block_size", "n_examples"),
    [
        *(("all", size, n) for size, n in ((BLOCK_SIZE, 60), (16, 20), (32, 20), (64, 20), (128, 20))),
        *((kinds, BLOCK_SIZE, 40) for kinds in KINDS if kinds != "all"),
        ("all, window, state", 32, 10),
    ],
)
def test_the_laws_hold_whatever_happens_in_whatever_order(kinds: str, block_size: int, n_examples: int) -> None:
    quick = settings(
        max_examples=n_examples, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    run_state_machine_as_test(lambda: EngineMachine(block_size, kinds), settings=quick)


@pytest.mark.parametrize(
    ("kinds", "block_size", "n_steps"),
    [("all", BLOCK_SIZE, 4000), ("all", 32, 1200), *((kinds, BLOCK_SIZE, 2500) for kinds in KINDS if kinds != "all")],
)
def test_thousands_of_steps_under_pressure_keep_the_laws_and_every_trigger_happens(
    kinds: str, block_size: int, n_steps: int
) -> None:
    rng = random.Random(7)
    harness = Harness(20, n_host_blocks=16, kinds=kinds, max_num_seqs=8, block_size=block_size)
    core, disturbed, most_shared = harness.core, set(), 0
    core.preemption.prefilled_tokens_per_s = 1.0
    for step in range(n_steps):
        if harness.connector.orders and rng.random() < 0.5:
            harness.connector.happen(rng.randrange(len(harness.connector.orders)), rng.choice((None, None, 1)))
        core.preemption.copied_bytes_per_s = 1.0 if step % 200 < 50 else 1e9
        if rng.random() < 0.25 and len(core.groups) < 12:
            prompt = rng.choice(TRUNKS) + bytes(rng.choices(range(97, 123), k=rng.randint(1, 14)))
            params = SamplingParams(
                n=rng.choice((1, 1, 1, 3)),
                max_tokens=rng.randint(1, 12 + 3 * block_size),
                temperature=rng.choice((0.0, 1.0)),
                seed=rng.randint(0, 2),
            )
            if rng.random() < 0.2:
                params = SamplingParams(n=2, beam_width=rng.randint(2, 3), max_tokens=rng.randint(1, 10))
            with contextlib.suppress(InvalidRequest):
                harness.add(prompt, params, salt=rng.choice(("", "", "other")), priority=rng.choice((0, 0, 1)))
        if rng.random() < 0.02 and core.groups:
            uid = rng.choice(sorted(core.groups))
            disturbed.add(uid)
            core.abort(uid)
        core.step()
        most_shared = max(most_shared, sum(block.refs > 1 for memory in core.kv.memories for block in memory.pool.blocks))
    harness.run_to_idle()
    for uid, request in harness.requests.items():
        if uid not in disturbed:
            assert harness.answers(uid) == alone(request, block_size)
    per_step = n_steps / 4000 / (1 if kinds == "all" else 3)
    assert core.scheduler.n_swaps > 50 * per_step and core.scheduler.n_recomputes > 10 * per_step
    assert core.exchange.n_fetched > 100 * per_step and core.exchange.n_stored > 100 * per_step
    for memory in core.kv.memories:
        assert memory.n_demoted > 500 * per_step and memory.n_promoted > 100 * per_step
        assert memory.host.n_evicted > 100 * per_step and memory.pool.n_evicted > 500 * per_step
    assert core.counters.cached_tokens > 500 * per_step
    assert core.counters.n_aborted > 10 * per_step
    assert most_shared > (1 if kinds == "state" else 4)


def test_a_search_whose_room_pins_take_lifts_them() -> None:
    harness = Harness(18, n_host_blocks=9)
    harness.add(b"x" * 36, SamplingParams(max_tokens=1, temperature=0), pins=True)
    harness.core.step()
    while harness.core.scheduler.has_work:
        harness.core.step()
    assert harness.core.kv.pins.n_blocks(harness.core.kv.memories[0]) == 9
    search = harness.add(b"another prompt, 20 b", SamplingParams(beam_width=4, max_tokens=8))
    harness.run_to_idle()
    assert not harness.core.kv.pins and harness.outputs[search].error is None
    assert harness.answers(search) == alone(harness.requests[search])


def test_beams_that_come_back_without_a_cache_and_do_not_fit_side_by_side_end_with_an_error() -> None:
    """Each has a prompt of its own then, where admission counted on a shared one."""
    harness = Harness(18, enable_prefix_caching=False, preemption_mode="recompute")
    search = harness.add(bytes(range(97, 123)) + b"abcd", SamplingParams(beam_width=3, max_tokens=6))
    scheduler = harness.core.scheduler
    while len(scheduler.running) < 3:
        harness.core.step()
    for beam in list(scheduler.running):
        scheduler._preempt(_Draft(0), beam)
    harness.run_to_idle()
    assert "do not fit" in harness.outputs[search].error


def test_a_copy_that_fails_leaves_an_engine_that_says_so_and_answers_nothing() -> None:
    harness = Harness(12, n_host_blocks=9)

    def interrupted(moves: tuple[Moves, ...]) -> None:
        raise KeyboardInterrupt

    harness.runner.move = interrupted
    with pytest.raises(KeyboardInterrupt):
        for i in range(9):
            harness.add(bytes([97 + i]) * 20, SamplingParams(max_tokens=4, temperature=0))
            harness.run_to_idle()
    with pytest.raises(EngineDead, match="KeyboardInterrupt"):
        harness.core.step()


def test_an_orderly_end_stores_more_than_may_be_under_way_at_once() -> None:
    harness = Harness(60, n_host_blocks=16)
    core, connector = harness.core, harness.connector
    for i in range(4):
        harness.add(bytes([97 + i]) * 30, SamplingParams(max_tokens=1, temperature=0))
    core.step()
    while core.scheduler.has_work:
        core.step()
    assert len(connector.orders) == 1, "two blocks of sixteen slots"
    submitted = connector.store

    def quick(keys, slots, done) -> None:
        submitted(keys, slots, done)
        connector.close()

    connector.store = quick
    connector.close()
    core.store_rest()
    assert len(connector.kept) == 4 * 7 and not core.exchange.has_rest
