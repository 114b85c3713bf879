"""create_app: the domains, put together."""

from __future__ import annotations

from functools import partial

from litestar import Litestar
from litestar.di import Provide
from litestar.events import EventListener
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from app import paths
from app.catalog import library
from app.chat.plugin import ChatPlugin
from app.errors import respond
from app.health import HealthController
from app.lifespan import ANSWERS_GRACE_S, SERVER_STOPPING, models_lifespan
from app.metrics import Metrics
from app.models.plugin import ModelsPlugin
from app.models.pool import ModelPool
from app.openai import OpenAIPlugin
from app.pins import PinsPlugin
from app.roles import RolesPlugin
from app.security import MAX_BODY_BYTES, Guard
from app.settings import Settings
from app.stats import StatsPlugin


def create_app(settings: Settings, pool: ModelPool | None = None) -> Litestar:
    """The whole server. Without a pool, one whose main model is the configured one, which must be on disk.

    Raises ModelLoadError when it is not.
    """
    if pool is None:
        pool = ModelPool.from_settings(settings, library.find(settings.serving.model, settings.orchestrator.models_folders))
    metrics = Metrics(pool)
    plugins = [
        OpenAIPlugin(pool),
        ModelsPlugin(settings, pool),
        StatsPlugin(settings, pool),
        PinsPlugin(settings),
        RolesPlugin(settings, pool.main, metrics),
    ]
    if settings.engine.role != "prefill":  # which serves another server, and leaves the chats to that one
        plugins.append(ChatPlugin(pool, paths.database_path()))
    app = Litestar(
        route_handlers=[HealthController],
        plugins=plugins,
        dependencies={"server_metrics": Provide(lambda: metrics, sync_to_thread=False)},
        exception_handlers={Exception: respond},
        lifespan=[models_lifespan(pool)],
        listeners=[EventListener(SERVER_STOPPING)(partial(pool.drain, ANSWERS_GRACE_S))],
        openapi_config=OpenAPIConfig(
            title="Pagewell",
            version="1",
            path="/schema",
            # The other renderers fetch scripts from elsewhere; nothing leaves this machine.
            render_plugins=[JsonRenderPlugin(path=["/openapi.json", "/"])],
        ),
        request_max_body_size=MAX_BODY_BYTES,
        logging_config=None,
        debug=settings.development,
    )
    app.asgi_handler = Guard(app.asgi_handler, settings)
    return app
