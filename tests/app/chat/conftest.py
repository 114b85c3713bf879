"""The chat page over answers that the tests write."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from httpx import ASGITransport, AsyncClient, Response
from litestar import Litestar

from app.chat import ChatPlugin
from app.chat.events import Changes
from app.chat.service import ChatService
from app.chat.views import Views
from app.models.pool import ModelPool
from tests.app.scripted import ScriptedEngine, ScriptedHost, until

HTMX = {"HX-Request": "true"}


@dataclass
class Site:
    """One application, its browser, and the engine behind it."""

    app: Litestar
    client: AsyncClient
    engine: ScriptedEngine
    host: ScriptedHost
    plugin: ChatPlugin
    pool: ModelPool

    @property
    def service(self) -> ChatService:
        return self.app.dependencies["chats"].dependency()

    @property
    def views(self) -> Views:
        return self.app.dependencies["chat_views"].dependency()

    @property
    def changes(self) -> Changes:
        return self.app.dependencies["chat_changes"].dependency()

    async def page(self, path: str = "/", status: int = 200) -> str:
        response = await self.client.get(path)
        assert response.status_code == status, response.text
        return response.text

    async def post(self, path: str, **data: str) -> Response:
        return await self.client.post(path, data=data, headers=HTMX)

    async def start(self, text: str = "hello") -> int:
        """A new chat; its id."""
        response = await self.post("/ui/chats", text=text)
        assert response.status_code == 200, response.text
        return int(response.headers["hx-push-url"].removeprefix("/chats/"))

    async def answered(self, text: str = "hello", answer: str = "Hi.") -> int:
        """A chat whose first question was answered."""
        conversation_id = await self.start(text)
        (await self.engine.answer()).begin().say(answer).end()
        await self.quiet(conversation_id)
        return conversation_id

    async def quiet(self, conversation_id: int) -> None:
        await until(lambda: self.plugin.hub.running_in(conversation_id) is None)


def article(html: str, n: int = -1) -> str:
    """The nth article of a page."""
    return re.findall(r"<article.*?</article>", html, re.DOTALL)[n]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    engine = ScriptedEngine()
    host = ScriptedHost(engine)
    pool = ModelPool(host)
    plugin = ChatPlugin(pool, tmp_path / "pagewell.db")
    app = Litestar(plugins=[plugin], logging_config=None)
    transport = ASGITransport(app)  # type: ignore[arg-type]
    started, done = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with app.lifespan():
            started.set()
            await done.wait()

    # One event loop for requests, hub and tests: the streams are read as the handlers read them.
    running = asyncio.create_task(run())
    await started.wait()
    async with AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        yield Site(app, client, engine, host, plugin, pool)
    done.set()
    await running
