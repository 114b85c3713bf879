"""The arithmetic of a load's report."""

from __future__ import annotations

import pytest

from app.bench import report
from app.bench.answer import Answer
from app.bench.load import Load

LOAD = Load(n_requests=6, concurrency=3, prompt_words=20, prefix_words=30, output_tokens=5)


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(v) for v in range(1, 101)]
    assert [report.percentile(values, share) for share in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert report.percentile([7.0], 50) == report.percentile([7.0], 99) == 7.0
    assert report.percentile([3.0, 1.0, 2.0], 50) == 2.0


def test_a_report_of_nothing_but_failures() -> None:
    figures = report.summarise(LOAD, [Answer(0, 0.0, total_s=1.0, error="x")])
    assert figures["n_failed"] == 1 and "ttft_s" not in figures
    assert report.lines(figures)[1].strip() == "x"


def test_the_steady_rate_leaves_out_the_time_in_which_only_some_streams_decode() -> None:
    first = Answer(0, 0.0, [1.0 + 0.1 * i for i in range(31)], n_output=31)
    second = Answer(1, 0.5, [1.45 + 0.1 * i for i in range(31)], n_output=31)
    assert report.steady_rate([first]) == pytest.approx(10)
    assert report.steady_rate([first, second]) == pytest.approx(20, rel=0.05)
    second.n_output = 62
    assert report.steady_rate([first, second]) == pytest.approx(30, rel=0.05), "two tokens in each piece"
    assert report.steady_rate([first, Answer(1, 100.0, [1.0, 2.0], n_output=2)]) is None
    assert report.steady_rate([]) is None


def test_rates_are_over_the_whole_time() -> None:
    answers = [Answer(0, 0.0, [0.5, 1.0], 1.0, 100, 60, 2), Answer(1, 1.0, [0.5, 3.0], 3.0, 100, 0, 2)]
    figures = report.summarise(LOAD, answers)
    assert (figures["wall_s"], figures["output_tokens_per_s"], figures["prompt_tokens_per_s"]) == (4.0, 1.0, 50.0)
    assert (figures["cached_share"], figures["itl_s"]["max"]) == (0.3, 2.5)
    assert "1.0 out, 50.0 in" in "\n".join(report.lines(figures))
