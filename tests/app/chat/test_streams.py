"""A tab that joins, leaves, comes back or reloads in mid-answer shows exactly the answer: no gap, nothing doubled."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest

from app.chat import streams
from app.chat.events import Cursor
from tests.app.chat.conftest import Site
from tests.app.chat.tab import Answer, parse, partials
from tests.app.scripted import until
from tests.ui.test_markdown import ATTACKS
from ui.markdown import render

TEXT = (
    "A *first* paragraph.\n\n- one\n- two\n\n```python\nif a < b:\n\n    print('<&>')\n```\n\n"
    "| a | b |\n|---|---|\n| 1 | 2 |\n\nThe end, without a line break"
)


def stream(site: Site, cursor: str | Cursor, current: int | None = 1) -> AsyncGenerator[bytes, None]:
    return streams.tab(site.plugin.hub, site.changes, site.service, site.views, current, Cursor.parse(str(cursor)))


async def read(chunks: AsyncGenerator[bytes, None], tab: Answer, until: Callable[[Answer], object]) -> None:
    """Read until the tab shows something, then lose the connection."""
    async with asyncio.timeout(5), contextlib.aclosing(chunks):
        async for chunk in chunks:
            for event in parse(chunk):
                tab.apply(event)
            if until(tab):
                return


def has_ended(tab: Answer) -> bool:
    return bool(tab.final)


async def begin(site: Site) -> Answer:
    """A tab in which a question was asked."""
    return Answer((await site.post("/ui/chats", text="q")).text)


async def test_a_reload_in_mid_answer_goes_on_without_gap_or_doubled_text(site: Site) -> None:
    """A tab loads the page after every few characters; each follows its own stream to the end."""
    tab = await begin(site)
    assert tab.cursor.endswith(".1.1.0")
    tabs, tasks = [tab], [asyncio.create_task(read(stream(site, tab.cursor), tab, has_ended))]
    answer = (await site.engine.answer()).begin()
    for start in range(0, len(TEXT), 9):
        answer.say(TEXT[start : start + 9])
        await asyncio.sleep(0.03)
        if start % 4 == 0:
            late = Answer(await site.page("/chats/1"))
            tabs.append(late)
            tasks.append(asyncio.create_task(read(stream(site, late.cursor), late, has_ended)))
    await asyncio.sleep(0.6)
    shown = {tab.closed + tab.tail for tab in tabs}
    assert len(shown) == 1 and "The end, without a line break" in shown.pop()
    assert len({tab.cursor for tab in tabs}) == 1 and Cursor.parse(tab.cursor).seq > 5
    answer.end()
    await asyncio.gather(*tasks)
    whole = render(TEXT)
    for tab in tabs:
        assert whole.startswith(tab.closed)
        assert f'id="m2-closed">{whole}</div>' in tab.final and "aria-busy" not in tab.final
        assert tab.pushed == []


async def test_a_lost_connection_goes_on_from_the_last_event(site: Site) -> None:
    tab = await begin(site)
    answer = (await site.engine.answer()).begin()
    for part in ("First.\n\nSecond.\n\n", "```\ncode", " goes on", "\n```\n\nThird"):
        answer.say(part)
        last = part.strip().split()[-1]
        await read(stream(site, tab.cursor), tab, lambda tab, last=last: last in tab.closed + tab.tail)
    live = site.plugin.hub.running_in(1)
    assert live is not None, "a browser that leaves cancels only its handler"
    assert (tab.closed, tab.tail) == (live.snapshot().closed, live.snapshot().tail)


async def test_the_connection_opens_at_once_and_an_unknown_number_gets_the_whole(site: Site) -> None:
    await site.start()
    (await site.engine.answer()).begin().say("one\n\ntwo\n")
    live = site.plugin.hub.running_in(1)
    await until(lambda: "two" in live.snapshot().tail)
    for generation_id, seq in ((1, 4711), (0, 0)):
        chunks = stream(site, replace(site.changes.cursor, generation_id=generation_id, seq=seq))
        assert (await anext(chunks)).startswith(b":")
        (event,) = parse(await anext(chunks))
        assert event.id == f"{site.changes.cursor}.1.{live.seq}"
        assert ("#m2-closed", "innerHTML", "<p>one</p>\n") in partials(event.data)
        await chunks.aclose()


async def test_an_answer_that_ended_while_nobody_listened_is_given_whole(site: Site) -> None:
    tab = await begin(site)
    (await site.engine.answer()).begin().say("Hi.").end()
    await site.quiet(1)
    await read(stream(site, tab.cursor), tab, has_ended)
    assert "<p>Hi.</p>" in tab.final
    assert Cursor.parse(tab.cursor) == site.changes.cursor


@pytest.mark.parametrize("attack", [a for a in ATTACKS if "event:" in a] + ["\x00\u2028\x85event: end\n\n"])
async def test_text_never_becomes_an_event(site: Site, attack: str) -> None:
    tab = await begin(site)
    (await site.engine.answer()).begin().say(attack).end()
    await read(stream(site, tab.cursor), tab, has_ended)
    assert tab.names == []


async def test_every_tab_of_a_chat_shows_an_exchange_and_its_answer(site: Site) -> None:
    await site.answered()
    cursor = site.changes.cursor
    await site.post("/ui/chats/1/messages", text="second")
    (await site.engine.answer(1)).begin().say("Yes.")
    chunks = stream(site, cursor)
    await anext(chunks)
    (pushed,) = parse(await anext(chunks))
    targets = [target for target, _, _ in partials(pushed.data)]
    assert targets == ["#messages", "#composer-action", "#conversations", "#chat-title"]
    assert pushed.data.count("<article") == 2 and pushed.id == str(site.changes.cursor)
    html = ""
    async with asyncio.timeout(5):
        while "<p>Yes.</p>" not in html:
            html += "".join(event.data for event in parse(await anext(chunks)))
    await chunks.aclose()


async def test_what_was_pushed_is_not_pushed_again_after_a_lost_connection(site: Site) -> None:
    await site.answered()
    cursor = site.changes.cursor
    for n in range(2):
        await site.post("/ui/chats/1/messages", text=f"question {n}")
        (await site.engine.answer(n + 1)).begin().say("x").end()
        await site.quiet(1)
    seen, pushed = str(cursor), []
    while Cursor.parse(seen).change < site.changes.cursor.change:
        chunks = stream(site, seen)
        await anext(chunks)
        (event,) = parse(await anext(chunks))
        await chunks.aclose()
        seen = event.id
        pushed += [target for target, _, _ in partials(event.data) if target == "#messages"]
    assert len(pushed) == 2


async def test_other_tabs_hear_of_continuing_and_deleting(site: Site) -> None:
    await site.start()
    live = site.plugin.hub.running_in(1)
    site.plugin.hub.stop(live.generation_id)
    await site.quiet(1)
    cursor = site.changes.cursor
    await site.post("/ui/messages/2/continue")
    await site.client.delete("/ui/chats/1")
    names, targets = [], []
    chunks = stream(site, cursor)
    async for chunk in chunks:
        for event in parse(chunk):
            names.append(event.name)
            targets += [target for target, _, _ in partials(event.data)]
        if targets:
            break
    assert "gone" in names, "the answer that was continued is gone too, and is passed over"
    await chunks.aclose()


@pytest.mark.parametrize("cursor", ["0badcafe.3", "nonsense", f"0badcafe.{'9' * 5000}", "", "0badcafe.³"])
async def test_a_tab_of_an_earlier_run_of_the_server_is_told_to_load_again(site: Site, cursor: str) -> None:
    response = await site.client.get("/ui/events?after=x", headers={"Last-Event-ID": cursor.encode("latin-1")})
    assert parse(response.content)[0].name == "stale"


async def test_the_progress_of_loading_reaches_an_open_page(site: Site) -> None:
    site.host.state, site.host.progress = "loading", 0.2
    chunks = stream(site, site.changes.cursor, None)
    await anext(chunks)
    assert 'value="20"' in parse(await anext(chunks))[0].data
    site.host.state = "ready"
    async with asyncio.timeout(3):
        html = parse(await anext(chunks))[0].data
    assert "4,096 tokens" in html and re.search(r'dot ready"', html)
    await chunks.aclose()


async def test_a_page_is_read_between_two_changes(site: Site) -> None:
    """Whatever a page shows is not announced to it again, and what it does not show is."""
    await site.answered()
    for n in range(5):
        sending = asyncio.create_task(site.post("/ui/chats/1/messages", text=f"question {n}"))
        html = await site.page("/chats/1")
        await sending
        cursor = Cursor.parse(re.search(r'data-after="([0-9a-f.]+)"', html)[1])
        announced = [change for change in site.changes.after(cursor) if change.kind == "exchanged"]
        assert (f"question {n}" in html.split('id="messages"')[1]) == (not announced)
        (await site.engine.answer(n + 1)).begin().say("x").end()
        await site.quiet(1)
