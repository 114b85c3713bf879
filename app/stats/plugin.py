"""Ties the stats feed to the application: its routes, its dependencies, and the sampler's life."""

from __future__ import annotations

from litestar.config.app import AppConfig
from litestar.di import Provide
from litestar.events import EventListener
from litestar.plugins import InitPlugin

from app.lifespan import SERVER_STOPPING
from app.settings import Settings
from app.stats.controller import StatsController
from app.stats.sampler import Sampler
from app.stats.sources import Pool


class StatsPlugin(InitPlugin):
    """`create_app` passes it in `plugins`; no model must have begun to load yet."""

    def __init__(self, settings: Settings, pool: Pool) -> None:
        self._settings = settings
        self.sampler = Sampler(pool, control=settings.orchestrator.permission_mode)

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.route_handlers.append(StatsController)
        app_config.dependencies["stats_sampler"] = Provide(lambda: self.sampler, sync_to_thread=False)
        app_config.dependencies["stats_settings"] = Provide(lambda: self._settings, sync_to_thread=False)
        app_config.on_startup.append(self.sampler.start)
        app_config.on_shutdown.append(self.sampler.stop)
        app_config.listeners.append(EventListener(SERVER_STOPPING)(self._end_feeds))
        return app_config

    async def _end_feeds(self) -> None:
        self.sampler.end_feeds()
