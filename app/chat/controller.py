"""The page's routes: whole pages for the browser, pieces and streams for htmx."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from litestar import Controller, MediaType, Request, Response, delete, get, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, URLEncodedBody

from app import pages
from app.chat import streams
from app.chat.events import Changes, Cursor
from app.chat.service import ChatService
from app.chat.views import Views
from app.generation.hub import GenerationHub
from app.sse import EventStream

log = logging.getLogger(__name__)


@dataclass(slots=True)
class MessageForm:
    text: str
    model: str | None = None


@dataclass(slots=True)
class TitleForm:
    title: str


Chats = NamedDependency[ChatService]
Pages = NamedDependency[Views]


class ChatController(Controller):
    """The chat page."""

    include_in_schema = False
    exception_handlers = {Exception: pages.describe}

    @get("/")
    async def new(self, chats: Chats, chat_views: Pages) -> Response[str]:
        return pages.html(await chat_views.page(await chats.open(None)))

    @get("/chats/{conversation_id:int}")
    async def show(self, conversation_id: FromPath[int], chats: Chats, chat_views: Pages) -> Response[str]:
        return pages.html(await chat_views.page(await chats.open(conversation_id)))

    @post("/ui/chats", status_code=200)
    async def start(self, data: URLEncodedBody[MessageForm], chats: Chats, chat_views: Pages) -> Response[str]:
        conversation = await chats.start(data.text, data.model)
        body = await chat_views.chat(await chats.open(conversation.id))
        return pages.html(body, **{"HX-Push-Url": f"/chats/{conversation.id}"})

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
        return pages.html(chat_views.item(await chats.conversation(conversation_id), current))

    @get("/ui/chats/{conversation_id:int}/title")
    async def rename_form(
        self,
        conversation_id: FromPath[int],
        chats: Chats,
        chat_views: Pages,
        current: FromQuery[int | None] = None,
    ) -> Response[str]:
        return pages.html(chat_views.rename_form(await chats.conversation(conversation_id), current))

    @put("/ui/chats/{conversation_id:int}/title")
    async def rename(
        self,
        conversation_id: FromPath[int],
        data: URLEncodedBody[TitleForm],
        chats: Chats,
        chat_views: Pages,
        current: FromQuery[int | None] = None,
    ) -> Response[str]:
        return pages.html(chat_views.item(await chats.rename(conversation_id, data.title), current))

    @delete("/ui/chats/{conversation_id:int}", status_code=200)
    async def delete(self, conversation_id: FromPath[int], chats: Chats, current: FromQuery[int | None] = None) -> Response[str]:
        await chats.delete(conversation_id)
        return pages.html("", **({"HX-Redirect": "/"} if conversation_id == current else {}))

    @post("/ui/messages/{message_id:int}/continue", status_code=204)
    async def go_on(self, message_id: FromPath[int], chats: Chats) -> None:
        await chats.go_on(message_id)

    @get("/ui/messages/{message_id:int}/text", media_type=MediaType.TEXT)
    async def text(self, message_id: FromPath[int], chats: Chats) -> Response[str]:
        return Response((await chats.message(message_id)).text, media_type=MediaType.TEXT, headers=pages.HEADERS)

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
