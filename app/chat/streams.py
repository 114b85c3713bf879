"""The two streams of a tab: the answer being written, and what changes around it.

Each message is HTML for htmx to put in place, with an id to go on from after a lost connection. HTML can hold line
breaks, never an event: every line becomes a data line of its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from litestar.response.sse import ServerSentEventMessage

from app.chat.errors import NotFound
from app.chat.events import Change, Changes
from app.chat.service import ChatService
from app.chat.views import Views
from app.generation.hub import GenerationHub

OPEN = b": open\n\n"
"""Sent at once, so that the browser knows the connection stands."""
MODEL_POLL_S = 0.5


def message(html: str, number: int | str | None = None) -> bytes:
    return ServerSentEventMessage(html, id=number, sep="\n").encode()


def event(name: str) -> bytes:
    """An event without content, which htmx hands to the page's scripts."""
    return ServerSentEventMessage("", event=name, sep="\n").encode()


async def answer(
    hub: GenerationHub, service: ChatService, views: Views, generation_id: int, after: int
) -> AsyncGenerator[bytes, None]:
    """From what the page shows (`after`) to the final article, and the event that closes the connection."""
    yield OPEN
    live = hub.get(generation_id)
    while live is not None and not live.ended:
        ops = live.since(after)
        if ops is not None:
            after = ops.seq
            yield message(views.ops(live.message_id, ops, live.n_prompt), after)
        else:
            await live.beyond(after)
    try:
        generation = await service.generation(generation_id)
        yield message(await views.article(await service.message(generation.message_id)))
    except NotFound:
        pass  # deleted while it was written: the other stream says so
    yield event("end")


async def changes(
    changes: Changes, service: ChatService, views: Views, current: int | None, tab: str, cursor: str
) -> AsyncGenerator[bytes, None]:
    """The sidebar, the model's state and what other tabs did in this conversation, until the tab or the server goes."""
    yield OPEN
    model = ""
    while not changes.closed:
        fresh = changes.after(cursor)
        if fresh is None:
            yield event("stale")
            return
        if fresh:
            cursor = changes.cursor_at(fresh[-1].seq)
            for change in fresh:
                if change.conversation_id == current and change.tab != tab:
                    async for chunk in _here(change, service, views):
                        yield chunk
            yield message(await views.sidebar(current), cursor)
            continue
        if (now := views.model()) != model:
            model = now
            yield message(now)
        await changes.wait(MODEL_POLL_S)


async def _here(change: Change, service: ChatService, views: Views) -> AsyncGenerator[bytes, None]:
    """What another tab did in the conversation that this one shows."""
    if change.kind == "deleted":
        yield event("gone")
    try:
        if change.kind == "exchanged":
            question, answer = [await service.message(message_id) for message_id in change.message_ids]
            yield message(await views.pushed_exchange(question, answer))
        elif change.kind == "continued":
            yield message(await views.article(await service.message(change.message_ids[0])))
    except NotFound:
        pass  # deleted since; that change comes next
