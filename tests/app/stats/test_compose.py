"""Statistics as they reach the feed: each figure under its own name, from the engine to the dashboard."""

from __future__ import annotations

import itertools

import msgspec

from app.stats.compose import totals
from app.stats.frames import TotalsSection
from engine.stats import EngineCounters, EngineStats
from tui.feed.model import Totals

ELSEWHERE = {"waste", "last_step_s"}
"""Not a plain copy."""


def names(struct: type) -> set[str]:
    return {field.name for field in msgspec.structs.fields(struct)}


def different_stats() -> EngineStats:
    """No two figures are alike."""
    numbers = itertools.count(1)
    counters = EngineCounters(**{name: next(numbers) for name in sorted(names(EngineCounters))})
    rest = names(EngineStats) - {"counters", "requests", "blocks", "owners"}
    return EngineStats(counters=counters, **{name: next(numbers) for name in sorted(rest)})


def test_each_figure_of_the_feed_is_the_engines_figure_of_that_name() -> None:
    stats = different_stats()
    section = totals(stats)
    for name in names(TotalsSection) - ELSEWHERE:
        source = stats if name in names(EngineStats) else stats.counters
        assert getattr(section, name) == getattr(source, name), name
    assert section.waste == round(stats.n_wasted_tokens / stats.n_room_tokens, 4) > 0


def test_the_dashboard_knows_each_figure_of_the_feed_but_totals_of_steps_and_requests() -> None:
    assert names(Totals) < names(TotalsSection)
    assert names(TotalsSection) - names(Totals) == {"n_steps", "n_requests"}
    sent = msgspec.json.encode(totals(different_stats()))
    shown = msgspec.json.decode(sent, type=Totals)
    assert all(getattr(shown, name) == getattr(totals(different_stats()), name) for name in names(Totals))
