"""Ties the pins to the application."""

from __future__ import annotations

from litestar.config.app import AppConfig
from litestar.di import Provide
from litestar.plugins import InitPlugin

from app.pins.controller import PinsController
from app.settings import Settings


class PinsPlugin(InitPlugin):
    """Adds the routes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.route_handlers.append(PinsController)
        app_config.dependencies["pin_settings"] = Provide(lambda: self._settings, sync_to_thread=False)
        return app_config
