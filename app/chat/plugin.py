"""Ties the chat page to the application: its routes, its files, its database and its hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from litestar import Litestar
from litestar.config.app import AppConfig
from litestar.datastructures import CacheControlHeader
from litestar.di import Provide
from litestar.events import EventListener
from litestar.plugins import InitPlugin
from litestar.static_files import create_static_files_router

from app.chat.controller import ChatController
from app.chat.events import Changes
from app.chat.service import ChatService
from app.chat.views import Views
from app.db.database import Database
from app.generation.hub import GenerationHub
from app.generation.live import Live
from app.generation.log import GenerationLog
from app.lifespan import SERVER_STOPPING
from app.models.pool import ModelPool
from ui.render import STATIC


class ChatPlugin(InitPlugin):
    """`create_app` passes it in `plugins`. `database` is the SQLite file."""

    def __init__(self, pool: ModelPool, database: Path) -> None:
        self._database = Database(database)
        self._changes = Changes()
        self.hub = GenerationHub(GenerationLog(self._database))
        self.hub.on_end.append(self._announce_end)
        self._service = ChatService(self._database, self.hub, pool, self._changes)
        self._views = Views(self._service, self.hub, pool)

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        # Addresses carry the hash of the file, so a browser never has to ask again.
        files = create_static_files_router(
            "/static", [STATIC], cache_control=CacheControlHeader(max_age=31_536_000, immutable=True)
        )
        app_config.route_handlers += [ChatController, files]
        app_config.dependencies |= {
            "chats": Provide(lambda: self._service, sync_to_thread=False),
            "chat_views": Provide(lambda: self._views, sync_to_thread=False),
            "chat_changes": Provide(lambda: self._changes, sync_to_thread=False),
            "generation_hub": Provide(lambda: self.hub, sync_to_thread=False),
        }
        app_config.lifespan.append(self._lifespan)
        app_config.listeners.append(EventListener(SERVER_STOPPING)(self._end_streams))
        return app_config

    def _announce_end(self, live: Live) -> None:
        self._changes.ended(live.conversation_id)

    async def _end_streams(self) -> None:
        self._changes.close()
        await self.hub.close()

    @asynccontextmanager
    async def _lifespan(self, _: Litestar) -> AsyncIterator[None]:
        await self._database.open()
        await self.hub.open()
        try:
            yield
        finally:
            await self.hub.close()
            await self._database.close()
