"""Ties a server's role to the application: whom it asks, or who may ask it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from litestar.config.app import AppConfig
from litestar.events import EventListener
from litestar.plugins import InitPlugin

from app.lifespan import SERVER_STOPPING
from app.metrics import Metrics
from app.models.host import ModelHost
from app.roles.decode import RemotePrefill
from app.roles.prefill import PrefillServer
from app.settings import Settings
from engine.async_engine import AsyncEngine
from engine.kv.tiers.shared_folder import KIND_DIGITS, SharedFolder


class RolesPlugin(InitPlugin):
    """`create_app` passes it in `plugins`; the host must not have begun to load yet. A server alone needs nothing of it, and one
    that has a role serves no other model."""

    def __init__(self, settings: Settings, host: ModelHost, metrics: Metrics) -> None:
        self._settings = settings
        self._host = host
        self._metrics = metrics
        self._folder: SharedFolder | None = None
        shared = settings.engine.kv_shared_folder
        self._base = Path(shared) if shared else None

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        if self._settings.engine.role == "prefill":
            prefill = PrefillServer(self._host, self._base)
            self._host.on_ready.append(prefill.attach)
            app_config.listeners.append(EventListener(SERVER_STOPPING)(prefill.close))
            app_config.on_shutdown.append(prefill.close)
        elif self._settings.engine.role == "decode":
            self._host.on_ready.append(self._look_ahead)
            app_config.on_shutdown.append(self._release)
        return app_config

    def _look_ahead(self, engine: AsyncEngine) -> None:
        if self._folder is None:
            self._folder = SharedFolder(self._base)
        folder = self._folder.kind(engine.info.kv_kind[:KIND_DIGITS])
        engine.ahead = RemotePrefill(
            engine,
            folder,
            partial(self._metrics.count_prefill, self._host.name),
            wait_s=self._settings.serving.prefill_wait,
            lease_s=self._settings.engine.kv_lease,
        )

    def _release(self) -> None:
        if self._folder is not None:
            self._folder.release()
            self._folder = None
