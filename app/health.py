"""Probes: is the process alive, is the model loaded; and the Prometheus text."""

from __future__ import annotations

from typing import Literal

import msgspec
from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency

from app.connection import while_connected
from app.host import ModelHost
from app.metrics import CONTENT_TYPE, Metrics


class Alive(msgspec.Struct):
    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct):
    status: Literal["loading", "ready", "unloaded", "failed"]
    model: str
    progress: float
    error: str | None = None


class HealthController(Controller):
    """Probes and metrics."""

    tags = ("Operation",)

    @get("/health", summary="200 while the process answers")
    async def alive(self) -> Alive:
        return Alive()

    @get("/health/ready", summary="200 when requests can be answered, else 503")
    async def ready(self, model_host: NamedDependency[ModelHost]) -> Response[Readiness]:
        error = str(model_host.error) if model_host.error else None
        body = Readiness(model_host.state, model_host.name, round(model_host.progress, 3), error)
        if model_host.state in ("ready", "unloaded"):  # an unloaded model loads on demand
            return Response(body)
        headers = {"retry-after": str(model_host.retry_after_s)} if model_host.state == "loading" else {}
        return Response(body, status_code=503, headers=headers)

    @get("/metrics", summary="Metrics in Prometheus' text format", media_type="text/plain")
    async def metrics(self, request: Request, server_metrics: NamedDependency[Metrics]) -> Response[bytes]:
        return Response(await while_connected(request.receive, server_metrics.render()), media_type=CONTENT_TYPE)
