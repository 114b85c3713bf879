"""Probes: is the process alive, is the model loaded; and the Prometheus text."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency

from app.connection import while_connected
from app.metrics import CONTENT_TYPE, Metrics
from app.models.host import State
from app.models.pool import ModelPool


class Alive(msgspec.Struct):
    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct):
    status: State
    model: str
    progress: float
    error: str | None = None


class HealthController(Controller):
    """Probes and metrics."""

    tags = ("Operation",)

    @get("/health", summary="200 while the process answers")
    async def alive(self) -> Alive:
        return Alive()

    @get("/health/ready", summary="200 when requests for the main model can be answered, else 503")
    async def ready(self, model_pool: NamedDependency[ModelPool]) -> Response[Readiness]:
        host = model_pool.main
        error = str(host.error) if host.error else None
        body = Readiness(host.state, host.name, round(host.progress, 3), error)
        if host.current is not None or host.would_wait:  # who asks for an unloaded model waits for it
            return Response(body)
        headers = {"retry-after": str(host.retry_after_s)} if host.state == "loading" else {}
        return Response(body, status_code=503, headers=headers)

    @get("/metrics", summary="Metrics in Prometheus' text format", media_type="text/plain")
    async def metrics(self, request: Request, server_metrics: NamedDependency[Metrics]) -> Response[bytes]:
        return Response(await while_connected(request.receive, server_metrics.render()), media_type=CONTENT_TYPE)
