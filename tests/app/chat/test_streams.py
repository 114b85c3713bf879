"""A tab that joins, leaves, comes back or reloads in mid-answer shows exactly the answer: no gap, nothing doubled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

import pytest

from app.chat import streams
from tests.app.chat.conftest import Site, article
from tests.app.chat.tab import Answer, parse, partials
from tests.app.scripted import until
from tests.ui.test_markdown import ATTACKS
from ui.markdown import render

TEXT = (
    "A *first* paragraph.\n\n- one\n- two\n\n```python\nif a < b:\n\n    print('<&>')\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\nThe end, without a line break"
)


def answer_stream(site: Site, after: int, generation_id: int = 1) -> AsyncGenerator[bytes, None]:
    return streams.answer(site.plugin.hub, site.service, site.views, generation_id, after)


def changes_stream(site: Site, tab: str, cursor: str, current: int | None = 1) -> AsyncGenerator[bytes, None]:
    return streams.changes(site.changes, site.service, site.views, current, tab, cursor)


async def read(stream: AsyncGenerator[bytes, None], tab: Answer) -> None:
    async for chunk in stream:
        for event in parse(chunk):
            tab.apply(event)


async def test_a_reload_in_mid_answer_goes_on_without_gap_or_doubled_text(site: Site) -> None:
    """A tab loads the page after every few characters; each follows its own stream to the end."""
    tab = Answer(article((await site.post("/ui/chats", text="q", tab="t")).text))
    assert tab.seq == 0
    tabs, tasks = [tab], [asyncio.create_task(read(answer_stream(site, 0), tab))]
    answer = (await site.engine.answer()).begin()
    for start in range(0, len(TEXT), 9):
        answer.say(TEXT[start : start + 9])
        await asyncio.sleep(0.03)
        if start % 4 == 0:
            late = Answer(article(await site.page("/chats/1")))
            tabs.append(late)
            tasks.append(asyncio.create_task(read(answer_stream(site, late.seq), late)))
    await asyncio.sleep(0.6)
    shown = {tab.closed + tab.tail for tab in tabs}
    assert len(shown) == 1 and "The end, without a line break" in shown.pop()
    assert len({tab.seq for tab in tabs}) == 1 and tabs[0].seq > 5
    answer.end()
    await asyncio.wait_for(asyncio.gather(*tasks), 5)
    whole = render(TEXT)
    for tab in tabs:
        assert tab.ended and whole.startswith(tab.closed)
        assert f'id="m2-closed">{whole}</div>' in tab.final and "hx-sse" not in tab.final


async def test_a_lost_connection_goes_on_from_the_last_event(site: Site) -> None:
    tab = Answer(article((await site.post("/ui/chats", text="q", tab="t")).text))
    answer = (await site.engine.answer()).begin()
    for part in ("First.\n\nSecond.\n\n", "```\ncode", " goes on", "\n```\n\nThird"):
        stream = answer_stream(site, tab.seq)
        answer.say(part)
        while True:
            event = parse(await anext(stream))
            if event:
                tab.apply(event[0])
            if part.strip().split()[-1] in tab.closed + tab.tail:
                break
        await stream.aclose()
    live = site.plugin.hub.running_in(1)
    assert live is not None, "a browser that leaves cancels only its handler"
    assert (tab.closed, tab.tail) == (live.snapshot().closed, live.snapshot().tail)


async def test_the_connection_opens_at_once_and_an_unknown_number_gets_the_whole(site: Site) -> None:
    await site.start()
    (await site.engine.answer()).begin().say("one\n\ntwo\n")
    live = site.plugin.hub.running_in(1)
    await until(lambda: "two" in live.snapshot().tail)
    stream = answer_stream(site, 4711)
    assert (await anext(stream)).startswith(b":")
    (event,) = parse(await anext(stream))
    assert event.id == str(live.seq)
    assert ("#m2-closed", "innerHTML", "<p>one</p>\n") in partials(event.data)
    await stream.aclose()


async def test_a_stream_of_an_answer_that_has_ended_gives_it_and_closes(site: Site) -> None:
    await site.answered()
    events = [event async for chunk in answer_stream(site, 0) for event in parse(chunk)]
    assert [event.name for event in events] == ["", "end"]
    assert partials(events[0].data)[0][0] == "#m2" and 'class="send"' in events[0].data
    unknown = [event async for chunk in answer_stream(site, 0, 99) for event in parse(chunk)]
    assert [event.name for event in unknown] == ["end"]


@pytest.mark.parametrize("attack", [a for a in ATTACKS if "event:" in a] + ["\x00\u2028\x85event: end\n\n"])
async def test_text_never_becomes_an_event(site: Site, attack: str) -> None:
    await site.start()
    (await site.engine.answer()).begin().say(attack).end()
    names = [event.name async for chunk in answer_stream(site, 0) for event in parse(chunk)]
    assert set(names[:-1]) <= {""} and names[-1] == "end"


async def test_another_tab_hears_of_an_exchange_and_the_own_tab_does_not_show_it_twice(site: Site) -> None:
    await site.answered()
    cursor = site.changes.cursor
    await site.post("/ui/chats/1/messages", text="second", tab="one")

    other, own = changes_stream(site, "two", cursor), changes_stream(site, "one", cursor)
    for stream in (other, own):
        assert (await anext(stream)).startswith(b":")
    pushed = parse(await anext(other))[0].data
    assert [target for target, _, _ in partials(pushed)] == ["#messages", "#composer-action"]
    assert pushed.count("<article") == 2 and "stream?after=" in pushed
    for stream in (other, own):
        event = parse(await anext(stream))[0]
        assert partials(event.data)[0][0] == "#conversations" and event.id == site.changes.cursor
        await stream.aclose()


async def test_other_tabs_hear_of_continuing_and_deleting(site: Site) -> None:
    await site.start()
    live = site.plugin.hub.running_in(1)
    site.plugin.hub.stop(live.generation_id)
    await site.quiet(1)
    cursor = site.changes.cursor
    await site.post("/ui/messages/2/continue", tab="one")
    await site.client.delete("/ui/chats/1")
    names, targets = [], []
    stream = changes_stream(site, "two", cursor)
    async for chunk in stream:
        for event in parse(chunk):
            names.append(event.name)
            targets += [target for target, _, _ in partials(event.data)]
        if targets:
            break
    assert "gone" in names, "the answer that was continued is gone too, and is passed over"
    await stream.aclose()


async def test_a_tab_of_an_earlier_run_of_the_server_is_told_to_load_again(site: Site) -> None:
    chunks = [chunk async for chunk in changes_stream(site, "one", "0badcafe.3")]
    assert parse(b"".join(chunks))[0].name == "stale"
    chunks = [chunk async for chunk in changes_stream(site, "one", "nonsense")]
    assert parse(b"".join(chunks))[0].name == "stale"


async def test_the_progress_of_loading_reaches_an_open_page(site: Site) -> None:
    site.host.state, site.host.progress = "loading", 0.2
    stream = changes_stream(site, "one", site.changes.cursor, None)
    await anext(stream)
    assert 'value="20"' in parse(await anext(stream))[0].data
    site.host.state = "ready"
    async with asyncio.timeout(3):
        html = parse(await anext(stream))[0].data
    assert "4,096 tokens" in html and re.search(r'dot ready"', html)
    await stream.aclose()


async def test_a_page_is_read_between_two_changes(site: Site) -> None:
    """Whatever a page shows is not announced to it again, and what it does not show is."""
    await site.answered()
    for n in range(5):
        sending = asyncio.create_task(site.post("/ui/chats/1/messages", text=f"question {n}", tab="one"))
        html = await site.page("/chats/1")
        await sending
        cursor = re.search(r"after=([0-9a-f]+\.\d+)", html)[1]
        announced = [change for change in site.changes.after(cursor) if change.kind == "exchanged"]
        assert (f"question {n}" in html.split('id="messages"')[1]) == (not announced)
        (await site.engine.answer(n + 1)).begin().say("x").end()
        await site.quiet(1)
