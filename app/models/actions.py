"""Actions: what the API and the page do with models beside asking them."""

from __future__ import annotations

import asyncio
import threading

from app.catalog import disk, library, pulling
from app.catalog.pulling import Offer
from app.errors import ClientGone, ModelInUse
from app.models.host import ModelHost
from app.models.pool import ModelPool
from app.settings import Settings
from engine.errors import ModelLoadError


class Actions:
    def __init__(self, pool: ModelPool, settings: Settings) -> None:
        self._pool = pool
        self._settings = settings

    async def load(self, name: str) -> ModelHost:
        """Begin to load; who must leave for it does when its answers have ended. Raises UnknownModel."""
        host = await self._pool.find(name)
        host.load()
        return host

    async def unload(self, name: str) -> ModelHost:
        """Free a model's memory once its answers have ended; new requests load it again. Raises UnknownModel, ModelInUse."""
        host = await self._pool.find(name)
        if host.is_busy:
            raise ModelInUse(f"{host.name} is answering.", "Wait for its answers to end, or end them.")
        await host.unload()
        return host

    async def remove(self, name: str) -> tuple[ModelHost, int]:
        """Delete a model from Pagewell's folder; the bytes that became free. Raises UnknownModel, ModelInUse, ModelLoadError."""
        host = await self._pool.find(name)
        if host.model is None:
            raise ModelLoadError(f"{host.name} has no file here.")
        disk.require_own(host.model)
        if host is self._pool.main:
            raise ModelInUse(f"{host.name} is the model that this server was started with.", "Stop the server first.")
        async with host.kept_out():
            freed = await asyncio.to_thread(disk.remove, host.model)
            await self._pool.look(fresh_s=0)
        return host, freed

    async def offer(self, name: str) -> Offer:
        """What a name of the shelf or a hub id has for this machine. Raises ModelNotFound, ModelLoadError."""
        entry = library.shelf.BY_NAME.get(name.lower())
        parsed = library.hub.parse_id(entry.hub_id if entry and entry.hub_id else name)
        if parsed is None:
            raise library.ModelNotFound(
                f"{name!r} is no name to download from.", "Name a hub id: owner/name, or owner/name:Q4_K_M."
            )
        has_left = threading.Event()

        def check() -> None:
            if has_left.is_set():
                raise ClientGone("The client closed its connection.")

        place = pulling.Place(self._settings.engine_for, self._pool.room.alone_bytes)
        try:
            return await asyncio.to_thread(pulling.offer, *parsed, check, place, name)
        finally:
            has_left.set()
