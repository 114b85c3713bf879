"""The one stream of a tab: what changes around a conversation, and the answer being written in it.

Browsers allow six connections to a server, for all their tabs together. So a tab has one stream, and none while it is
hidden; everything that comes up on the page after it was loaded comes through it, in order.

Each message is HTML for htmx to put in place, with an id to go on from after a lost connection. HTML can hold line
breaks, never an event: every line becomes a data line of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import replace
from typing import Any

from litestar.response.sse import ServerSentEventMessage

from app.chat.errors import NotFound
from app.chat.events import Change, Changes, Cursor
from app.chat.service import ChatService
from app.chat.views import Views
from app.generation.hub import GenerationHub

OPEN = b": open\nretry: 1000\n\n"
"""Sent at once, so that the browser knows the connection stands. A lost one is tried again after a second."""
MODEL_POLL_S = 0.5


def message(html: str, cursor: Cursor | None = None) -> bytes:
    return ServerSentEventMessage(html, id=None if cursor is None else str(cursor), sep="\n").encode()


def event(name: str) -> bytes:
    """An event without content, for the page's scripts."""
    return ServerSentEventMessage("", event=name, sep="\n").encode()


async def tab(
    hub: GenerationHub, changes: Changes, service: ChatService, views: Views, current: int | None, cursor: Cursor
) -> AsyncGenerator[bytes, None]:
    """All that a tab which shows `current` has to hear, until it or the server goes."""
    yield OPEN
    model = ""
    while not changes.closed:
        fresh = changes.after(cursor)
        if fresh is None:
            yield event("stale")
            return
        for change in fresh:
            if change.kind == "deleted" and change.conversation_id == current:
                yield event("gone")
            html = await _here(change, service, views) if change.conversation_id == current else ""
            # In one message with the last change: a connection that is lost between two would leave out one of them.
            html += await views.sidebar(current) if change is fresh[-1] else ""
            cursor = replace(cursor, change=change.seq)
            yield message(html, cursor)
        if fresh:
            continue
        # An answer's beginning is announced at the instant it begins, so the page has its article by now.
        live = hub.running_in(current) if current is not None else None
        if cursor.generation_id and (live is None or live.generation_id != cursor.generation_id):
            ended, cursor = cursor.generation_id, replace(cursor, generation_id=0, seq=0)
            yield message(await _final(ended, service, views), cursor)
        elif live is not None and (ops := live.since(cursor.seq if cursor.generation_id else -1)):
            cursor = replace(cursor, generation_id=live.generation_id, seq=ops.seq)
            yield message(views.ops(live, ops), cursor)
        elif (now := views.model()) != model:
            model = now
            yield message(now)
        elif live is not None:
            await _first(changes.beyond(cursor.change, MODEL_POLL_S), live.beyond(cursor.seq))
        else:
            await changes.beyond(cursor.change, MODEL_POLL_S)


async def _here(change: Change, service: ChatService, views: Views) -> str:
    """What happened in the conversation that the tab shows."""
    try:
        if change.kind == "exchanged":
            question, answer = [await service.message(message_id) for message_id in change.message_ids]
            return await views.exchange(question, answer)
        if change.kind == "continued":
            return await views.article(await service.message(change.message_ids[0]))
    except NotFound:
        return ""  # deleted since; that change comes next
    return ""


async def _final(generation_id: int, service: ChatService, views: Views) -> str:
    """The article of an answer that has ended."""
    try:
        generation = await service.generation(generation_id)
        return await views.article(await service.message(generation.message_id))
    except NotFound:
        return ""  # deleted while it was written; that change comes next


async def _first(*waits: Coroutine[Any, Any, None]) -> None:
    """Return when one of them has."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
