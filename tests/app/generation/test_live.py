"""An answer in mid-writing can be joined at any number: what follows always makes the page whole, with nothing doubled."""

from __future__ import annotations

import asyncio
from html import escape

from hypothesis import given, settings
from hypothesis import strategies as st

from app.generation.live import Live, PageOps, Phase
from ui.markdown import render

PIECES = [
    *("Some words ", "**bold** ", "🙂 ", "\n", "\n\n", "- item\n", "1. one\n", "# Title\n"),
    *("```python\n", "x = '<b>'\n", "```\n", "```", "| a |\n", "|---|\n", "&", "<"),
]


class Page:
    """A browser tab: where it is, and what it shows."""

    def __init__(self, live: Live) -> None:
        self.seq = -1
        self.apply(live.snapshot())

    def apply(self, ops: PageOps | None) -> None:
        if ops is None:
            return
        assert ops.seq > self.seq or ops.reset
        self.seq = ops.seq
        self.closed = ops.closed if ops.reset else self.closed + ops.closed
        if ops.tail is not None:
            self.tail = ops.tail
        if ops.code:
            assert self.tail.count("</code></pre></div>") == 1
            self.tail = self.tail.replace("</code>", escape(ops.code) + "</code>")

    def catch_up(self, live: Live) -> None:
        self.apply(live.since(self.seq))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_pages_that_join_and_read_at_any_time_show_the_same(data: st.DataObject) -> None:
    live = Live(1, 1, 1, data.draw(st.sampled_from(["", "kept\n\n```\ncode", "kept **text"])))
    pages = [Page(live)]
    for piece in data.draw(st.lists(st.sampled_from(PIECES), max_size=25)):
        live.push(piece)
        if data.draw(st.booleans()):
            live.tick()
        if data.draw(st.booleans()):
            pages.append(Page(live))
        for page in pages:
            if data.draw(st.booleans()):
                page.catch_up(live)
    live.tick()
    whole = live.snapshot()
    for page in pages:
        page.catch_up(live)
        assert (page.seq, page.closed, page.tail) == (whole.seq, whole.closed, whole.tail)
    assert render(live.text).startswith(whole.closed)


def test_a_page_that_is_up_to_date_lacks_nothing() -> None:
    live = Live(1, 1, 1)
    live.push("a")
    live.tick()
    assert live.since(1) is None
    live.tick()
    assert live.seq == 1, "a tick without news has no number"


def test_a_number_from_another_life_gets_a_snapshot() -> None:
    live = Live(1, 1, 1)
    live.push("a\n\nb\n")
    live.tick()
    for unknown in (7, -1, -5):
        ops = live.since(unknown)
        assert ops.reset and ops.seq == 1 and ops.closed == "<p>a</p>\n" and ops.tail == "<p>b</p>\n"


def test_changes_of_phase_are_operations_too() -> None:
    live = Live(1, 1, 1)
    live.enter(Phase.LOADING, 0.4)
    live.tick()
    assert (live.since(0).phase, live.since(0).progress) == (Phase.LOADING, 0.4)
    live.enter(Phase.LOADING, 0.4)
    live.tick()
    assert live.seq == 1


async def test_waiting_returns_for_news_and_for_the_end() -> None:
    live = Live(1, 1, 1)
    waiting = asyncio.create_task(live.beyond(0))
    await asyncio.sleep(0)
    assert not waiting.done()
    live.push("a")
    live.tick()
    await asyncio.wait_for(waiting, 1)
    waiting = asyncio.create_task(live.beyond(1))
    await asyncio.sleep(0)
    live.end()
    await asyncio.wait_for(waiting, 1)
