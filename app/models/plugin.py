"""Ties the models to the application: their routes, and downloads."""

from __future__ import annotations

from litestar.config.app import AppConfig
from litestar.di import Provide
from litestar.events import EventListener
from litestar.plugins import InitPlugin

from app.lifespan import SERVER_STOPPING
from app.models.actions import Actions
from app.models.controller import ModelsController, PullsController
from app.models.page import ModelsPage
from app.models.pool import ModelPool
from app.models.pulls import Pulls
from app.settings import Settings


class ModelsPlugin(InitPlugin):
    """`create_app` passes it in `plugins`."""

    def __init__(self, settings: Settings, pool: ModelPool) -> None:
        self._settings = settings
        self._pool = pool
        self._pulls = Pulls(pool, settings)
        self._actions = Actions(pool, settings)

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.route_handlers += [ModelsController, PullsController]
        if self._settings.engine.role != "prefill":  # whose server has no page
            app_config.route_handlers.append(ModelsPage)
        app_config.dependencies |= {
            "model_pool": Provide(lambda: self._pool, sync_to_thread=False),
            "model_actions": Provide(lambda: self._actions, sync_to_thread=False),
            "model_pulls": Provide(lambda: self._pulls, sync_to_thread=False),
            "models_settings": Provide(lambda: self._settings, sync_to_thread=False),
        }
        app_config.listeners.append(EventListener(SERVER_STOPPING)(self._pulls.close))
        app_config.on_shutdown.append(self._pulls.close)
        return app_config
