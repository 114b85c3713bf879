"""The page's routes: whole pages for the browser, pieces and streams for htmx."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from litestar import Controller, MediaType, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.params import FromPath, FromQuery, URLEncodedBody

from app.chat import streams
from app.chat.errors import Busy, NotFound, Unusable
from app.chat.events import Changes, Cursor
from app.chat.service import ChatService
from app.chat.views import Views
from app.errors import UnknownModel
from app.generation.hub import GenerationHub
from app.sse import EventStream
from engine.errors import PagewellError
from ui.render import render

log = logging.getLogger(__name__)

POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
"""No inline script or style, no eval, nothing from elsewhere: what slips through the sanitiser still cannot act."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # A page that comes back from the browser's cache would show answers as they were.
    "Cache-Control": "no-store",
}
_STATUS = {UnknownModel: 404, NotFound: 404, Busy: 409, Unusable: 422}


@dataclass(slots=True)
class MessageForm:
    text: str
    model: str | None = None


@dataclass(slots=True)
class TitleForm:
    title: str


Chats = NamedDependency[ChatService]
Pages = NamedDependency[Views]


def _html(body: str, **headers: str) -> Response[str]:
    return Response(body, media_type=MediaType.HTML, headers=HEADERS | headers)


def _describe(request: Request[Any, Any, Any], error: Exception) -> Response[str]:
    """A whole page for the browser, a sentence for htmx, which the page shows as a notice."""
    if isinstance(error, PagewellError):
        status, message, hint = _STATUS.get(type(error), 400), error.message, error.hint
    elif isinstance(error, HTTPException):
        status, message, hint = error.status_code, error.detail, ""
    else:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        status, message, hint = 500, "The server made a mistake; its log says more.", ""
    if "hx-request" in request.headers:
        return Response(f"{message} {hint}".strip(), media_type=MediaType.TEXT, status_code=status, headers=HEADERS)
    body = render("error.html", message=message, hint=hint)
    return Response(body, media_type=MediaType.HTML, status_code=status, headers=HEADERS)


class ChatController(Controller):
    """The chat page."""

    include_in_schema = False
    exception_handlers = {Exception: _describe}

    @get("/")
    async def new(self, chats: Chats, chat_views: Pages) -> Response[str]:
        return _html(await chat_views.page(await chats.open(None)))

    @get("/chats/{conversation_id:int}")
    async def show(self, conversation_id: FromPath[int], chats: Chats, chat_views: Pages) -> Response[str]:
        return _html(await chat_views.page(await chats.open(conversation_id)))

    @post("/ui/chats", status_code=200)
    async def start(self, data: URLEncodedBody[MessageForm], chats: Chats, chat_views: Pages) -> Response[str]:
        conversation = await chats.start(data.text, data.model)
        body = await chat_views.chat(await chats.open(conversation.id))
        return _html(body, **{"HX-Push-Url": f"/chats/{conversation.id}"})

    @post("/ui/chats/{conversation_id:int}/messages", status_code=204)
    async def send(self, conversation_id: FromPath[int], data: URLEncodedBody[MessageForm], chats: Chats) -> None:
        await chats.send(conversation_id, data.text, data.model)

    @get("/ui/chats/{conversation_id:int}/item")
    async def item(
        self,
        conversation_id: FromPath[int],
        chats: Chats,
        chat_views: Pages,
        current: FromQuery[int | None] = None,
    ) -> Response[str]:
        return _html(chat_views.item(await chats.conversation(conversation_id), current))

    @get("/ui/chats/{conversation_id:int}/title")
    async def rename_form(
        self,
        conversation_id: FromPath[int],
        chats: Chats,
        chat_views: Pages,
        current: FromQuery[int | None] = None,
    ) -> Response[str]:
        return _html(chat_views.rename_form(await chats.conversation(conversation_id), current))

    @put("/ui/chats/{conversation_id:int}/title")
    async def rename(
        self,
        conversation_id: FromPath[int],
        data: URLEncodedBody[TitleForm],
        chats: Chats,
        chat_views: Pages,
        current: FromQuery[int | None] = None,
    ) -> Response[str]:
        return _html(chat_views.item(await chats.rename(conversation_id, data.title), current))

    @delete("/ui/chats/{conversation_id:int}", status_code=200)
    async def delete(self, conversation_id: FromPath[int], chats: Chats, current: FromQuery[int | None] = None) -> Response[str]:
        await chats.delete(conversation_id)
        return _html("", **({"HX-Redirect": "/"} if conversation_id == current else {}))

    @post("/ui/messages/{message_id:int}/continue", status_code=204)
    async def go_on(self, message_id: FromPath[int], chats: Chats) -> None:
        await chats.go_on(message_id)

    @get("/ui/messages/{message_id:int}/text", media_type=MediaType.TEXT)
    async def text(self, message_id: FromPath[int], chats: Chats) -> Response[str]:
        return Response((await chats.message(message_id)).text, media_type=MediaType.TEXT, headers=HEADERS)

    @post("/ui/generations/{generation_id:int}/stop", status_code=204)
    async def stop(self, generation_id: FromPath[int], generation_hub: NamedDependency[GenerationHub]) -> None:
        generation_hub.stop(generation_id)

    @get("/ui/events")
    async def events(
        self,
        request: Request[Any, Any, Any],
        chats: Chats,
        chat_changes: NamedDependency[Changes],
        chat_views: Pages,
        generation_hub: NamedDependency[GenerationHub],
        after: FromQuery[str],
        chat: FromQuery[int | None] = None,
    ) -> EventStream:
        cursor = Cursor.parse(request.headers.get("last-event-id") or after)
        return EventStream(streams.tab(generation_hub, chat_changes, chats, chat_views, chat, cursor), close=_nothing)


def _nothing() -> None:
    """A browser that leaves ends its stream only: the hub goes on."""
