"""Ties the OpenAI-shaped endpoint to the application."""

from __future__ import annotations

from litestar.config.app import AppConfig
from litestar.di import Provide
from litestar.plugins import InitPlugin

from app.models.pool import ModelPool
from app.openai.controller import OpenAIController
from app.openai.service import OpenAIService


class OpenAIPlugin(InitPlugin):
    """Adds the routes and the service behind them."""

    def __init__(self, pool: ModelPool) -> None:
        self._service = OpenAIService(pool)

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.route_handlers.append(OpenAIController)
        app_config.dependencies["openai"] = Provide(lambda: self._service, sync_to_thread=False)
        return app_config
