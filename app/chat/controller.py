"""The page's routes: whole pages for the browser, pieces and streams for htmx."""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass
from typing import Annotated, Any

from litestar import Controller, MediaType, Request, Response, delete, get, post, put
from litestar.enums import RequestEncodingType
from litestar.exceptions import HTTPException
from litestar.params import Body

from app.chat import streams
from app.chat.errors import Busy, NotFound, Unusable
from app.chat.events import Changes
from app.chat.service import ChatService
from app.chat.views import Views
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
_STATUS = {NotFound: 404, Busy: 409, Unusable: 422}


@dataclass(slots=True)
class MessageForm:
    text: str
    tab: str = ""


@dataclass(slots=True)
class TitleForm:
    title: str


@dataclass(slots=True)
class TabForm:
    tab: str = ""


MessageData = Annotated[MessageForm, Body(media_type=RequestEncodingType.URL_ENCODED)]
TitleData = Annotated[TitleForm, Body(media_type=RequestEncodingType.URL_ENCODED)]
TabData = Annotated[TabForm, Body(media_type=RequestEncodingType.URL_ENCODED)]


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
    async def new(self, chats: ChatService, chat_views: Views) -> Response[str]:
        return _html(await chat_views.page(await chats.open(None), secrets.token_hex(8)))

    @get("/chats/{conversation_id:int}")
    async def show(self, conversation_id: int, chats: ChatService, chat_views: Views) -> Response[str]:
        return _html(await chat_views.page(await chats.open(conversation_id), secrets.token_hex(8)))

    @post("/ui/chats", status_code=200)
    async def start(self, data: MessageData, chats: ChatService, chat_views: Views) -> Response[str]:
        conversation = await chats.start(data.text, data.tab)
        body = await chat_views.chat(await chats.open(conversation.id), data.tab)
        return _html(body, **{"HX-Push-Url": f"/chats/{conversation.id}"})

    @post("/ui/chats/{conversation_id:int}/messages", status_code=200)
    async def send(self, conversation_id: int, data: MessageData, chats: ChatService, chat_views: Views) -> Response[str]:
        question, answer = await chats.send(conversation_id, data.text, data.tab)
        return _html(await chat_views.exchange(question, answer))

    @get("/ui/chats/{conversation_id:int}/item")
    async def item(
        self, conversation_id: int, chats: ChatService, chat_views: Views, current: int | None = None
    ) -> Response[str]:
        return _html(chat_views.item(await chats.conversation(conversation_id), current))

    @get("/ui/chats/{conversation_id:int}/title")
    async def rename_form(
        self, conversation_id: int, chats: ChatService, chat_views: Views, current: int | None = None
    ) -> Response[str]:
        return _html(chat_views.rename_form(await chats.conversation(conversation_id), current))

    @put("/ui/chats/{conversation_id:int}/title")
    async def rename(
        self, conversation_id: int, data: TitleData, chats: ChatService, chat_views: Views, current: int | None = None
    ) -> Response[str]:
        return _html(chat_views.item(await chats.rename(conversation_id, data.title), current))

    @delete("/ui/chats/{conversation_id:int}", status_code=200)
    async def delete(self, conversation_id: int, chats: ChatService, current: int | None = None) -> Response[str]:
        await chats.delete(conversation_id)
        return _html("", **({"HX-Redirect": "/"} if conversation_id == current else {}))

    @post("/ui/messages/{message_id:int}/continue", status_code=200)
    async def go_on(self, message_id: int, data: TabData, chats: ChatService, chat_views: Views) -> Response[str]:
        return _html(await chat_views.article(await chats.go_on(message_id, data.tab)))

    @get("/ui/messages/{message_id:int}/text", media_type=MediaType.TEXT)
    async def text(self, message_id: int, chats: ChatService) -> Response[str]:
        return Response((await chats.message(message_id)).text, media_type=MediaType.TEXT, headers=HEADERS)

    @post("/ui/generations/{generation_id:int}/stop", status_code=204)
    async def stop(self, generation_id: int, generation_hub: GenerationHub) -> None:
        generation_hub.stop(generation_id)

    @get("/ui/generations/{generation_id:int}/stream")
    async def stream(
        self,
        request: Request[Any, Any, Any],
        generation_id: int,
        generation_hub: GenerationHub,
        chats: ChatService,
        chat_views: Views,
        after: int = 0,
    ) -> EventStream:
        last = request.headers.get("last-event-id", "")
        after = max(after, int(last)) if last.isdecimal() else after
        return EventStream(streams.answer(generation_hub, chats, chat_views, generation_id, after), close=_nothing)

    @get("/ui/events")
    async def events(
        self,
        request: Request[Any, Any, Any],
        chats: ChatService,
        chat_changes: Changes,
        chat_views: Views,
        after: str,
        tab: str,
        chat: int | None = None,
    ) -> EventStream:
        cursor = request.headers.get("last-event-id") or after
        return EventStream(streams.changes(chat_changes, chats, chat_views, chat, tab, cursor), close=_nothing)


def _nothing() -> None:
    """A browser that leaves ends its stream only: the hub goes on."""
