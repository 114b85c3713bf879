"""The step loop on the fake runner: commit, cuts, forks, aborts, failures."""

from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import BrokenLogits
from engine.outputs import RequestOutput
from engine.scheduler import _Draft
from engine.types import Delta, Event, Finished, FinishReason, Request, SamplingParams, Started, Status, StepPlan, StepResult
from tests.engine.fake_runner import END_ID, ByteTokenizer, FakeRunner


class Bench:
    def __init__(self, n_blocks: int = 100, end_every: int = 0, **knobs) -> None:
        self.runner = FakeRunner(n_blocks, 4, 64, end_every=end_every)
        config = EngineConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 32, "debug_checks": True, **knobs})
        self.events: list[Event] = []
        self.core = EngineCore(config, self.runner, ByteTokenizer(), self.events.extend)

    def add(self, prompt: str = "hello", **params) -> int:
        self.prompt = list(prompt.encode())
        return self.core.add(Request("", self.prompt, SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **params})))

    def finish(self) -> None:
        self.core.step()
        while self.core.scheduler.has_work:
            self.core.step()
        assert self.core.kv.memories[0].pool.n_free == len(self.core.kv.memories[0].pool.blocks)

    def output(self, uid: int, n: int = 1) -> RequestOutput:
        output = RequestOutput.empty(self.prompt, n)
        for event in self.events:
            if event.uid == uid:
                output.add(event)
        return output

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


def test_events_come_as_started_then_deltas_then_one_finished() -> None:
    bench = Bench()
    bench.add(max_tokens=3)
    bench.finish()
    assert [type(event) for event in bench.events] == [Started, Delta, Delta, Delta, Finished]
    assert bench.events[-2].finish_reason is FinishReason.LENGTH
    usage = bench.events[-1].usage
    assert (usage.n_prompt, usage.n_cached, usage.n_output) == (5, 0, 3) and usage.ttft_s > 0


def test_started_is_told_before_the_step_and_not_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.add(max_tokens=1)
    execute, seen = bench.runner.execute, []
    monkeypatch.setattr(bench.runner, "execute", lambda plan: seen.extend(map(type, bench.events)) or execute(plan))
    bench.finish()
    assert seen == [Started]


def test_no_max_tokens_means_until_the_window_is_full() -> None:
    bench = Bench()
    uid = bench.add(max_tokens=None)
    bench.finish()
    choice = bench.output(uid).outputs[0]
    assert len(choice.token_ids) == 64 - 5 and choice.finish_reason is FinishReason.LENGTH


def test_an_end_token_counts_as_output_but_is_not_shown() -> None:
    bench = Bench(end_every=3)
    uid = bench.add(max_tokens=50)
    bench.finish()
    choice = bench.output(uid).outputs[0]
    assert choice.finish_reason is FinishReason.STOP and choice.stop_reason is None
    assert END_ID not in choice.token_ids and bench.output(uid).usage.n_output == len(choice.token_ids) + 1
    ignoring = Bench(end_every=3)
    uid = ignoring.add(max_tokens=50, ignore_eos=True)
    ignoring.finish()
    assert len(ignoring.output(uid).outputs[0].token_ids) == 50


def test_a_stop_token_id_ends_the_answer_and_is_named() -> None:
    free = Bench()
    uid = free.add()
    free.finish()
    tokens = free.output(uid).outputs[0].token_ids
    stopped = Bench()
    uid = stopped.add(stop_token_ids=(tokens[4],))
    stopped.finish()
    choice = stopped.output(uid).outputs[0]
    assert choice.token_ids == tokens[: tokens.index(tokens[4])] and choice.stop_reason == tokens[4]


def test_a_stop_string_cuts_text_and_ids_at_the_same_place() -> None:
    free = Bench()
    uid = free.add()
    free.finish()
    whole = free.output(uid).outputs[0]
    stop = whole.text[3:5]
    stopped = Bench()
    uid = stopped.add(stop=(stop,))
    stopped.finish()
    choice = stopped.output(uid).outputs[0]
    cut = whole.text.index(stop)
    assert choice.text == whole.text[:cut] and choice.stop_reason == stop and choice.finish_reason is FinishReason.STOP
    assert choice.token_ids == whole.token_ids[: cut + 2], "ids end with the token that completed the stop string"


def test_stop_strings_count_from_min_tokens_on() -> None:
    free = Bench()
    uid = free.add(max_tokens=8)
    free.finish()
    text = free.output(uid).outputs[0].text
    held = Bench()
    uid = held.add(max_tokens=8, stop=(text[0:2], text[4:6]), min_tokens=4)
    held.finish()
    assert text.index(text[4:6]) == 4, "the runner's text repeats itself"
    assert held.output(uid).outputs[0].text == text[:4]


def test_text_held_back_for_a_stop_string_comes_with_the_end() -> None:
    free = Bench()
    uid = free.add(max_tokens=4)
    free.finish()
    text = free.output(uid).outputs[0].text
    held = Bench()
    uid = held.add(max_tokens=4, stop=text[-2:] + "!")
    held.finish()
    assert held.output(uid).outputs[0].text == text and held.output(uid).outputs[0].finish_reason is FinishReason.LENGTH


def test_cached_tokens_are_those_of_the_first_admission() -> None:
    bench = Bench(n_blocks=9)
    old, young = bench.add("a prompt of 20 token"), bench.add("other", max_tokens=16)
    bench.finish()
    assert bench.core.scheduler.n_preemptions > 0
    assert bench.output(old).usage.n_cached == bench.output(young).usage.n_cached == 0


def test_three_failed_steps_in_a_row_are_more_than_the_engine_takes() -> None:
    bench = Bench()
    for attempt in range(3):
        uid = bench.add()
        bench.runner.fail_next = True
        if attempt < 2:
            bench.core.step()
    with pytest.raises(RuntimeError, match="told to fail"):
        bench.core.step()
    assert uid not in bench.core.groups


def test_n_choices_share_the_prompts_blocks_and_are_what_they_are_alone() -> None:
    bench = Bench()
    uid = bench.add("a prompt of 20 token", n=3, temperature=1.0, seed=5)
    bench.core.step()
    assert {block.refs for block in bench.core.kv.memories[0].pool.blocks[:5]} == {3}
    bench.finish()
    choices = bench.output(uid, 3).outputs
    assert len({choice.text for choice in choices}) == 3 and all(len(choice.token_ids) == 8 for choice in choices)
    assert len(bench.of(Finished)) == 1 and bench.output(uid, 3).usage.n_output == 24
    wider = Bench()
    uid = wider.add("a prompt of 20 token", n=5, temperature=1.0, seed=5)
    wider.finish()
    assert [c.text for c in wider.output(uid, 5).outputs[:3]] == [c.text for c in choices]


def test_choices_beyond_max_num_seqs_wait_their_turn() -> None:
    bench = Bench(max_num_seqs=2)
    uid = bench.add(n=5, temperature=1.0, seed=5)
    bench.finish()
    assert all(choice.finish_reason is FinishReason.LENGTH for choice in bench.output(uid, 5).outputs)
    assert len(bench.of(Finished)) == 1


@pytest.mark.parametrize("steps_before", [0, 1, 2, 4])
def test_an_abort_at_any_point_gives_one_terminal_event_and_every_block_back(steps_before: int) -> None:
    bench = Bench(max_num_batched_tokens=8)
    uid = bench.add("a prompt of 20 token", n=2, temperature=1.0)
    for _ in range(steps_before):
        bench.core.step()
    bench.core.abort(uid)
    bench.core.abort(uid)
    bench.core.step()
    assert [event.reason for event in bench.of(Finished)] == [FinishReason.ABORT]
    bench.finish()


def test_a_failing_step_ends_its_answers_with_an_error_and_the_engine_goes_on() -> None:
    bench = Bench()
    doomed = bench.add()
    bench.runner.fail_next = True
    bench.core.step()
    assert "told to fail" in bench.output(doomed).error and bench.output(doomed).outputs[0].finish_reason is FinishReason.ERROR
    fine = bench.add()
    bench.finish()
    assert len(bench.output(fine).outputs[0].token_ids) == 8


def test_broken_logits_end_their_own_request_and_the_others_go_on_unharmed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    broken, fine = bench.add(), bench.add("another")
    execute = bench.runner.execute

    def break_once(plan: StepPlan) -> StepResult:
        execute(plan)
        monkeypatch.setattr(bench.runner, "execute", execute)
        raise BrokenLogits([broken])

    monkeypatch.setattr(bench.runner, "execute", break_once)
    bench.finish()
    assert "no finite likeliest token" in bench.output(broken).error
    alone = Bench()
    uid = alone.add("another")
    alone.finish()
    assert bench.output(fine).outputs[0].token_ids == alone.output(uid).outputs[0].token_ids


def test_a_result_that_belongs_to_an_older_generation_is_dropped() -> None:
    bench = Bench()
    uid = bench.add()
    bench.core.step()
    seq = bench.core.groups[uid].sequences[0]
    plan = bench.core.scheduler.schedule()
    result = bench.runner.execute(plan)
    bench.core.scheduler._preempt(_Draft(0), seq)
    bench.core.scheduler.schedule()
    assert seq.status is Status.RUNNING, "admitted again before the old result arrives"
    n_computed = seq.n_computed
    bench.core._commit(plan, result)
    assert seq.n_output == 1 and seq.n_computed == n_computed
    bench.finish()
    undisturbed = Bench()
    other = undisturbed.add()
    undisturbed.finish()
    assert bench.output(uid).outputs[0].token_ids == undisturbed.output(other).outputs[0].token_ids


def test_prompt_logprobs_are_complete_and_never_taken_from_the_cache() -> None:
    bench = Bench(max_num_batched_tokens=8)
    bench.add("the very same prompt")
    bench.finish()
    uid = bench.add("the very same prompt", prompt_logprobs=0)
    bench.finish()
    kept = bench.output(uid).prompt_logprobs
    assert kept[0] is None and [item.token_id for item in kept[1:]] == list(b"the very same prompt")[1:]
    assert bench.output(uid).usage.n_cached == 0
    third = bench.add("the very same prompt")
    bench.finish()
    assert bench.output(third).usage.n_cached == 16


def test_fresh_seeds_differ_and_the_engines_seed_repeats_them() -> None:
    texts = []
    for seed in (0, 0, 1):
        bench = Bench(seed=seed)
        uids = [bench.add(temperature=1.0) for _ in range(2)]
        bench.finish()
        texts.append([bench.output(uid).outputs[0].text for uid in uids])
    assert texts[0] == texts[1] != texts[2] and texts[0][0] != texts[0][1]


def test_counters_and_snapshot_tell_what_happened() -> None:
    bench = Bench()
    bench.add("the very same prompt")
    bench.finish()
    bench.add("the very same prompt", n=2, temperature=1.0)
    bench.core.step()
    stats = []
    bench.core.ask(EngineCore.stats, stats.append)
    bench.core.step()
    (now,) = stats
    assert now.n_running == 2 and {row.status for row in now.requests} == {"running"}
    assert [row.n_cached for row in now.requests] == [16, 19], "a fork has all but the prompt's last token for nothing"
    assert now.n_free + now.n_cached + now.n_used == now.n_blocks == 100 and now.n_shared == 5
    assert now.counters.cached_tokens == 16 and now.counters.prompt_tokens == 20 + 4 and now.counters.n_requests == 2
    assert sum(owner >= 0 for owner in now.owners) == now.n_used
    bench.finish()
    assert bench.core.counters.n_finished == 2
