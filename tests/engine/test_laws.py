"""The laws of DESIGN under random operations: a fake runner with exact KV memory, checks after every step."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.config import EngineConfig
from engine.core import MAX_FAILED_STEPS, EngineCore
from engine.outputs import RequestOutput
from engine.types import Event, Finished, FinishReason, Request, SamplingParams
from tests.engine.fake_runner import ByteTokenizer, FakeRunner

BLOCK_SIZE = 4
MAX_LEN = 48
TRUNKS = (b"the same system prompt, again", b"another trunk of text", b"")


class Harness:
    """A core on the fake runner, stepped by hand, that gathers every request's events."""

    def __init__(self, n_blocks: int, **knobs) -> None:
        self.runner = FakeRunner(n_blocks, BLOCK_SIZE, MAX_LEN, end_every=9)
        defaults = dict(block_size=BLOCK_SIZE, max_num_seqs=6, max_num_batched_tokens=16, debug_checks=True)
        config = EngineConfig(**{**defaults, **knobs})
        self.core = EngineCore(config, self.runner, ByteTokenizer(), self.receive)
        self.outputs: dict[int, RequestOutput] = {}
        self.terminals: dict[int, list[Finished]] = {}
        self.requests: dict[int, Request] = {}

    def receive(self, events: list[Event]) -> None:
        for event in events:
            self.outputs[event.uid].add(event)
            if isinstance(event, Finished):
                self.terminals[event.uid].append(event)

    def add(self, prompt: bytes, params: SamplingParams, *, salt: str = "", priority: int = 0) -> int:
        request = Request("", list(prompt), params, cache_salt=salt, priority=priority)
        uid = self.core.add(request)
        self.requests[uid] = request
        self.outputs[uid] = RequestOutput.empty(request.prompt_token_ids, params.n)
        self.terminals[uid] = []
        return uid

    def run_to_idle(self, most_steps: int = 5000) -> None:
        self.core.step()
        for _ in range(most_steps):
            if not self.core.scheduler.has_work:
                break
            self.core.step()
        assert not self.core.scheduler.has_work, "the engine did not come to rest"
        self.check_idle()

    def check_idle(self) -> None:
        assert not self.core.groups
        pool = self.core.kv.pool
        assert pool.n_free == len(pool.blocks), "law e: an idle engine holds blocks"
        assert all(len(terminals) == 1 for terminals in self.terminals.values()), "law e: one terminal event each"

    def answers(self, uid: int) -> list[tuple[str, list[int], FinishReason | None]]:
        return [(choice.text, choice.token_ids, choice.finish_reason) for choice in self.outputs[uid].outputs]


def alone(request: Request) -> list[tuple[str, list[int], FinishReason | None]]:
    """The request's answers with the engine to itself, nothing cached, nothing cut."""
    harness = Harness(400, max_num_batched_tokens=4096, max_num_seqs=64, enable_prefix_caching=False)
    uid = harness.add(bytes(request.prompt_token_ids), request.params)
    harness.run_to_idle()
    return harness.answers(uid)


class EngineMachine(RuleBasedStateMachine):
    """Add, abort, fork, step, evict, fail and preempt (by a pool that is too small) in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness(18)
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
    )
    def add(self, trunk, tail, n, max_tokens, temperature, seed, salt, priority, prompt_logprobs, stop) -> None:
        params = SamplingParams(
            n=n, max_tokens=max_tokens, temperature=temperature, seed=seed, prompt_logprobs=prompt_logprobs, stop=stop
        )
        self.harness.add((trunk + tail)[: MAX_LEN - 1], params, salt=salt, priority=priority)

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
        self.harness.core.evict_cached(lambda n: None)
        self.harness.core.step()

    @rule()
    def fail_a_step(self) -> None:
        if self.harness.core._n_failed_steps == MAX_FAILED_STEPS - 1:
            return  # the engine would give up, which test_core has
        self.harness.runner.fail_next = True
        before = {uid for uid, terminals in self.harness.terminals.items() if not terminals}
        self.harness.core.step()
        self.harness.runner.fail_next = False
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
            assert harness.answers(uid) == alone(request), "an answer depends on its neighbours"
            if request.params.prompt_logprobs is not None:
                kept = harness.outputs[uid].prompt_logprobs
                assert [p.token_id for p in kept[1:]] == request.prompt_token_ids[1:], "prompt logprobs are out of step"


EngineMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestEngineMachine = EngineMachine.TestCase


def test_thousands_of_steps_under_pressure_keep_the_laws_and_every_trigger_happens() -> None:
    rng = random.Random(7)
    harness = Harness(20, max_num_seqs=8)
    core, disturbed, most_shared = harness.core, set(), 0
    for _ in range(4000):
        if rng.random() < 0.25 and len(core.groups) < 12:
            prompt = rng.choice(TRUNKS) + bytes(rng.choices(range(97, 123), k=rng.randint(1, 14)))
            params = SamplingParams(
                n=rng.choice((1, 1, 1, 3)),
                max_tokens=rng.randint(1, 24),
                temperature=rng.choice((0.0, 1.0)),
                seed=rng.randint(0, 2),
            )
            harness.add(prompt, params, salt=rng.choice(("", "", "other")), priority=rng.choice((0, 0, 1)))
        if rng.random() < 0.02 and core.groups:
            uid = rng.choice(sorted(core.groups))
            disturbed.add(uid)
            core.abort(uid)
        core.step()
        most_shared = max(most_shared, sum(block.refs > 1 for block in core.kv.pool.blocks))
    harness.run_to_idle()
    for uid, request in harness.requests.items():
        if uid not in disturbed:
            assert harness.answers(uid) == alone(request)
    assert core.scheduler.n_preemptions > 50
    assert core.counters.cached_tokens > 500
    assert core.kv.pool.n_evicted > 500
    assert core.counters.n_aborted > 10
    assert most_shared > 4
