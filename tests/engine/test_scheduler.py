"""The scheduler on toy sizes: who is planned, with how many tokens, and who gives way."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.kv.groups import KVGroup
from engine.kv.manager import KVManager
from engine.preemption import Preemption
from engine.scheduler import Scheduler
from engine.types import Request, SamplingParams, Sequence, Status, StepPlan


def scheduler(n_blocks: int = 40, **knobs) -> Scheduler:
    config = EngineConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 16, **knobs})
    group = KVGroup(n_blocks=n_blocks)
    kv = KVManager((group,), 4, enable_caching=config.enable_prefix_caching, extras={}, chunk=config.token_budget)
    return Scheduler(config, kv, Preemption(config.preemption_mode, has_host_memory=False))


def sequence(uid: int, n_tokens: int, *, first: int | None = None, priority: int = 0) -> Sequence:
    first = uid * 1000 if first is None else first
    tokens = list(range(first, first + n_tokens))
    request = Request("", tokens, SamplingParams(), uid=uid, priority=priority)
    return Sequence(request, 0, list(tokens), n_tokens, 0, 100, frozenset(), None)


def shares(plan: StepPlan) -> list[tuple[int, int, int]]:
    return [(entry.seq.request.uid, entry.start, entry.n_query) for entry in plan.entries]


def commit(scheduler: Scheduler, plan: StepPlan) -> None:
    for entry in plan.entries:
        entry.seq.n_computed = entry.start + entry.n_query
        scheduler.kv.publish(entry.seq)
        if entry.samples:
            entry.seq.token_ids.append(7)


def step(scheduler: Scheduler) -> list[tuple[int, int, int]]:
    plan = scheduler.schedule()
    commit(scheduler, plan)
    scheduler.check()
    return shares(plan)


def test_a_long_prompt_is_cut_into_chunks_beside_decodes() -> None:
    s = scheduler()
    s.add(sequence(0, 3))
    assert step(s) == [(0, 0, 3)]
    s.add(sequence(1, 30))
    assert step(s) == [(0, 3, 1), (1, 0, 15)]
    assert step(s) == [(0, 4, 1), (1, 15, 15)]
    assert step(s) == [(0, 5, 1), (1, 30, 1)]


def test_decodes_come_first_even_when_an_older_prompt_could_take_the_whole_budget() -> None:
    s = scheduler()
    s.add(sequence(0, 60))
    assert step(s) == [(0, 0, 16)]
    s.add(sequence(1, 2, priority=-1))
    assert step(s) == [(1, 0, 2), (0, 16, 14)]
    s.running[0].request.priority = 1
    s.running.reverse()
    assert step(s) == [(1, 2, 1), (0, 30, 15)]


def test_a_long_prompt_leaves_half_of_the_budget_to_others_and_takes_what_they_leave() -> None:
    s = scheduler(n_blocks=200)
    s.add(sequence(0, 400))
    assert step(s) == [(0, 0, 16)]
    s.add(sequence(1, 20))
    assert step(s) == [(0, 16, 8), (1, 0, 8)]
    assert step(s) == [(0, 24, 8), (1, 8, 8)]
    assert step(s) == [(0, 32, 12), (1, 16, 4)]
    assert step(s) == [(1, 20, 1), (0, 44, 15)]


def test_the_last_token_of_the_budget_is_not_halved_to_nothing() -> None:
    s = scheduler(n_blocks=200, max_num_batched_tokens=16, max_num_seqs=16)
    for uid in range(15):
        s.add(sequence(uid, 1))
    step(s)
    s.add(sequence(20, 400))
    s.add(sequence(21, 400))
    assert step(s)[-1] == (20, 0, 1)


def test_a_higher_priority_goes_before_prefills_under_way() -> None:
    s = scheduler(n_blocks=200)
    s.add(sequence(0, 100, priority=5))
    assert step(s) == [(0, 0, 16)]
    s.add(sequence(1, 10, priority=5))
    s.add(sequence(2, 10, priority=-5))
    assert step(s) == [(2, 0, 10), (0, 16, 6)]


def test_without_chunking_a_prompt_above_the_budget_runs_whole_beside_decodes() -> None:
    s = scheduler(enable_chunked_prefill=False)
    s.add(sequence(0, 5))
    s.add(sequence(1, 30))
    s.add(sequence(2, 5))
    assert step(s) == [(0, 0, 5)], "one prefill was planned already, and the next does not fit beside it"
    assert step(s) == [(0, 5, 1), (1, 0, 30)]
    assert step(s) == [(0, 6, 1), (1, 30, 1), (2, 0, 5)]


def test_priority_goes_before_arrival() -> None:
    s = scheduler(max_num_seqs=1)
    for uid, priority in ((0, 1), (1, 0), (2, 0)):
        s.add(sequence(uid, 3, priority=priority))
    order = []
    for _ in range(3):
        order += [uid for uid, _, _ in step(s)]
        s.remove(s.running[0])
    assert order == [1, 2, 0]


def test_blocks_running_out_preempts_the_lowest_priority_then_the_youngest() -> None:
    s = scheduler(7)
    oldest, young, low = sequence(0, 8), sequence(1, 4), sequence(2, 4, priority=1)
    for seq in (oldest, young, low):
        s.add(seq)
    step(s)
    assert len(s.running) == 3 and s.kv.memories[0].pool.n_free == 3
    step(s)
    assert s.kv.memories[0].pool.n_free == 0
    for _ in range(3):
        step(s)
    plan = s.schedule()
    assert plan.preempted == (low,) and low.status is Status.PREEMPTED and low.generation == 1
    assert low.tables == [] and low.n_computed == 0
    assert [entry.seq for entry in plan.entries] == [oldest, young]


def test_the_preempted_one_returns_and_finds_its_prefix_in_the_cache() -> None:
    s = scheduler(7)
    first, second = sequence(0, 12), sequence(1, 4)
    s.add(first)
    s.add(second)
    step(s)
    while second.status is Status.RUNNING:
        step(s)
    s.remove(first)
    plan = s.schedule()
    assert [entry.seq for entry in plan.entries] == [second]
    assert plan.entries[0].start > 0, "full blocks of the preempted answer were still cached"


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    s = scheduler(7)
    s.add(sequence(0, 12))
    s.add(sequence(1, 4, priority=1))
    step(s)
    while s.kv.memories[0].pool.n_free:
        step(s)
    while s.running[0].n_computed % 4:
        step(s)
    s.add(sequence(2, 1))
    plan = s.schedule()
    assert plan.preempted and s.kv.memories[0].pool.n_free > 0
    assert 2 not in [entry.seq.request.uid for entry in plan.entries], "the blocks just taken back are for those who run"


def test_requests_with_one_prefix_compute_it_once_when_they_arrive_together() -> None:
    s = scheduler()
    for uid in range(3):
        seq = sequence(uid, 12, first=0)
        seq.token_ids[9:] = [uid] * 3
        s.add(seq)
    s.add(sequence(9, 2))
    assert step(s) == [(0, 0, 12), (9, 0, 2)], "the others wait for the prefix; a stranger passes them"
    assert step(s) == [(0, 12, 1), (9, 2, 1), (1, 8, 4), (2, 8, 4)]


def test_admission_keeps_headroom_for_those_who_run() -> None:
    s = scheduler(7)
    s.add(sequence(0, 12))
    step(s)
    s.add(sequence(1, 12))
    assert step(s) == [(0, 12, 1)]
    assert s.kv.memories[0].pool.n_free == 3, "room for the prompt, but none would be left for the answer that runs"
    s.remove(s.running[0])
    assert step(s) == [(1, 0, 12)]


def test_max_num_seqs_is_kept() -> None:
    s = scheduler(max_num_seqs=2)
    for uid in range(4):
        s.add(sequence(uid, 2))
    assert [uid for uid, _, _ in step(s)] == [0, 1]
    assert len(s.waiting) == 2


def test_check_plan_sees_a_write_into_a_block_that_others_read() -> None:
    s = scheduler()
    s.add(sequence(0, 6))
    step(s)
    plan = s.schedule()
    s.check_plan(plan)
    block = s.kv.memories[0].pool.blocks[plan.entries[0].seq.tables[0][1]]
    s.kv.memories[0].pool.acquire(block)
    with pytest.raises(AssertionError, match="others may read it"):
        s.check_plan(plan)
