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
from app.host import ModelHost
from app.lifespan import ANSWERS_GRACE_S, SERVER_STOPPING, model_lifespan
from app.metrics import Metrics
from app.openai import OpenAIPlugin
from app.pins import PinsPlugin
from app.roles import RolesPlugin
from app.security import MAX_BODY_BYTES, Guard
from app.settings import Settings
from app.stats import StatsPlugin


def create_app(settings: Settings, host: ModelHost | None = None) -> Litestar:
    """The whole server. Without a host, one for the configured model, which must be on disk.

    Raises ModelLoadError when it is not.
    """
    if host is None:
        model = library.find(settings.serving.model)
        host = ModelHost.from_settings(settings, model.path)
    metrics = Metrics(host)
    plugins = [OpenAIPlugin(host), StatsPlugin(settings, host), PinsPlugin(settings), RolesPlugin(settings, host, metrics)]
    if settings.engine.role != "prefill":  # which serves another server, and leaves the chats to that one
        plugins.append(ChatPlugin(host, paths.database_path()))
    app = Litestar(
        route_handlers=[HealthController],
        plugins=plugins,
        dependencies={
            "model_host": Provide(lambda: host, sync_to_thread=False),
            "server_metrics": Provide(lambda: metrics, sync_to_thread=False),
        },
        exception_handlers={Exception: respond},
        lifespan=[model_lifespan(host)],
        listeners=[EventListener(SERVER_STOPPING)(partial(host.drain, ANSWERS_GRACE_S))],
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
