"""Latencies and ended answers, from events alone."""

from __future__ import annotations

import pytest

from app.stats.answers import KEEP_ENDED_S, LATENCY_WINDOW_S, MAX_LATENCIES, Answers
from engine.types import FinishReason
from tests.app.stats.fakes import Clock, finished, started, token


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def answers(clock):
    return Answers(clock)


def test_ttft_counts_from_arrival_and_itl_between_tokens(answers, clock):
    answers.observe(started(1, queued_s=0.5))
    clock.now += 0.25
    answers.observe(token(1))
    for gap in (0.1, 0.1, 0.4):
        clock.now += gap
        answers.observe(token(1))
    latency = answers.latency()
    assert latency.ttft_p50_s == pytest.approx(0.75)
    assert latency.itl_p50_s == pytest.approx(0.1)
    assert latency.itl_p95_s == pytest.approx(0.4)


def test_several_tokens_in_one_delta_share_its_time(answers, clock):
    answers.observe(started(1))
    answers.observe(token(1))
    clock.now += 0.3
    answers.observe(token(1, n=3))
    assert answers.latency().itl_p50_s == pytest.approx(0.1)


def test_a_request_has_one_ttft_however_many_choices_it_has(answers, clock):
    answers.observe(started(1))
    clock.now += 1.0
    answers.observe(token(1, index=0))
    clock.now += 9.0
    answers.observe(token(1, index=1))
    assert answers.latency().ttft_p95_s == pytest.approx(1.0)


def test_old_latencies_are_forgotten(answers, clock):
    answers.observe(started(1))
    answers.observe(token(1))
    clock.now += LATENCY_WINDOW_S + 1
    assert answers.latency().ttft_p50_s is None


def test_percentiles_are_of_the_newest_values_where_a_minute_has_very_many(answers, clock):
    answers.observe(started(1))
    for gap in (1.0, 0.01):
        for _ in range(MAX_LATENCIES):
            clock.now += gap / 1000
            answers.observe(token(1))
    assert answers.latency().itl_p95_s == pytest.approx(0.00001, abs=1e-4)
    assert len(answers._itl.values) == MAX_LATENCIES


def test_an_ended_answer_keeps_its_exact_count_for_a_few_seconds(answers, clock):
    answers.observe(started(1, queued_s=1.0))
    answers.observe(token(1))
    clock.now += 1.0
    answers.observe(token(1, n=2, finish=FinishReason.LENGTH))
    answers.observe(finished(1))
    (ended,) = answers.ended()
    assert (ended.n_output, ended.state, ended.tok_s) == (3, "completed", pytest.approx(2.0))
    clock.now += KEEP_ENDED_S + 0.1
    assert not list(answers.ended())


@pytest.mark.parametrize(("reason", "state"), [(FinishReason.ABORT, "aborted"), (FinishReason.ERROR, "failed")])
def test_an_answer_that_did_not_end_by_itself_says_so(answers, reason, state):
    answers.observe(started(1))
    answers.observe(finished(1, reason))
    assert [answer.state for answer in answers.ended()] == [state]


def test_a_request_aborted_in_the_queue_is_seen_too(answers, clock):
    answers.observe(finished(4, FinishReason.ABORT, total_s=2.0))
    (ended,) = answers.ended()
    assert (ended.uid, ended.state, ended.arrived_s) == (4, "aborted", clock.now - 2.0)


def test_each_choice_of_a_request_ends_once(answers):
    answers.observe(started(1))
    answers.observe(token(1, index=0, finish=FinishReason.STOP))
    answers.observe(token(1, index=1))
    answers.observe(finished(1))
    assert sorted(answer.index for answer in answers.ended()) == [0, 1]


def test_what_runs_when_the_engine_goes_has_failed(answers):
    answers.observe(started(1))
    answers.forget_live("")
    assert [answer.state for answer in answers.ended()] == ["failed"]
