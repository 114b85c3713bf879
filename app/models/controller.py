"""/api/models and /api/pulls: what is here, what it is, load, unload, download, delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from litestar import Controller, Request, delete, get, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, JSONBody, Parameter

from app.body import JsonBody
from app.catalog.inspect import describe
from app.connection import while_connected
from app.models.actions import Actions
from app.models.pool import ModelPool
from app.models.pulls import Pull, Pulls
from app.models.schemas import ModelAnswer, ModelRequest, ModelsAnswer, OfferAnswer, PullAnswer, PullsAnswer, Removed
from app.settings import Settings
from app.sse import DONE, EventStream, data
from app.stats import permission
from engine.errors import ModelLoadError

PullId = Annotated[int, Parameter(ge=0)]


class ModelsController(Controller):
    """Models of this machine."""

    path = "/api/models"
    tags = ("Models",)
    dto = JsonBody
    return_dto = None

    @get(summary="All models of this machine, and how they stand")
    async def models(self, model_pool: NamedDependency[ModelPool]) -> ModelsAnswer:
        await model_pool.look()
        return ModelsAnswer([ModelAnswer.of(host, model_pool.main) for host in model_pool.hosts])

    @get("/{name:path}", summary="What a model is, and what of it fits on this machine")
    async def show(self, name: FromPath[str], model_pool: NamedDependency[ModelPool]) -> dict[str, Any]:
        host = await model_pool.find(name.lstrip("/"))
        if host.model is None:
            raise ModelLoadError(f"{host.name} has no file here.")
        # Others leave for it where they must, and what it has itself is no reason against it.
        free, caps_window = model_pool.room.alone_bytes, host is not model_pool.main
        facts = await asyncio.to_thread(describe, host.model, host.config, free=free, caps_window=caps_window)
        return {"name": host.name, "path": str(host.model.path), "kind": host.model.kind, **facts}

    @post("/load", summary="Load a model; others leave for it when their answers have ended", status_code=202)
    async def load(
        self,
        request: Request,
        data: JSONBody[ModelRequest],
        model_pool: NamedDependency[ModelPool],
        model_actions: NamedDependency[Actions],
        models_settings: NamedDependency[Settings],
    ) -> ModelAnswer:
        permission.check(models_settings, request)
        return ModelAnswer.of(await model_actions.load(data.model), model_pool.main)

    @post("/unload", summary="Free the memory of a model that does not answer", status_code=200)
    async def unload(
        self,
        request: Request,
        data: JSONBody[ModelRequest],
        model_pool: NamedDependency[ModelPool],
        model_actions: NamedDependency[Actions],
        models_settings: NamedDependency[Settings],
    ) -> ModelAnswer:
        permission.check(models_settings, request)
        return ModelAnswer.of(await model_actions.unload(data.model), model_pool.main)

    @post("/offer", summary="What a repository of the hub has for this machine", status_code=200)
    async def offer(
        self,
        request: Request,
        data: JSONBody[ModelRequest],
        model_actions: NamedDependency[Actions],
        models_settings: NamedDependency[Settings],
    ) -> OfferAnswer:
        permission.check(models_settings, request)
        return OfferAnswer.of(await while_connected(request.receive, model_actions.offer(data.model)))

    @post("/pull", summary="Download a model; server-sent events tell how far it is", status_code=200)
    async def pull(
        self,
        request: Request,
        data: JSONBody[ModelRequest],
        model_pulls: NamedDependency[Pulls],
        models_settings: NamedDependency[Settings],
    ) -> EventStream:
        permission.check(models_settings, request)
        return _stream(model_pulls, model_pulls.start(data.model))

    @delete("/{name:path}", summary="Delete a model from Pagewell's folder", status_code=200)
    async def remove(
        self,
        request: Request,
        name: FromPath[str],
        model_actions: NamedDependency[Actions],
        models_settings: NamedDependency[Settings],
    ) -> Removed:
        permission.check(models_settings, request)
        host, freed = await model_actions.remove(name.lstrip("/"))
        return Removed(host.name, freed)


class PullsController(Controller):
    """Downloads under way."""

    path = "/api/pulls"
    tags = ("Models",)

    @get(summary="Downloads under way, and those that ended a while ago")
    async def pulls(self, model_pulls: NamedDependency[Pulls]) -> PullsAnswer:
        return PullsAnswer([PullAnswer.of(pull) for pull in model_pulls.all])

    @get("/{pull_id:int}/events", summary="Server-sent events of a download", media_type="text/event-stream")
    async def events(self, pull_id: PullId, model_pulls: NamedDependency[Pulls]) -> EventStream:
        return _stream(model_pulls, _known(model_pulls, pull_id))

    @delete("/{pull_id:int}", summary="End a download; the next pull goes on from what is there", status_code=202)
    async def cancel(
        self,
        request: Request,
        pull_id: PullId,
        model_pulls: NamedDependency[Pulls],
        models_settings: NamedDependency[Settings],
    ) -> PullAnswer:
        permission.check(models_settings, request)
        pull = _known(model_pulls, pull_id)
        model_pulls.cancel(pull)
        return PullAnswer.of(pull)


def _known(pulls: Pulls, pull_id: int) -> Pull:
    pull = pulls.get(pull_id)
    if pull is None:
        raise NotFoundException(f"There is no download {pull_id}.")
    return pull


def _stream(pulls: Pulls, pull: Pull) -> EventStream:
    """Who leaves it ends nothing but the stream."""

    async def events() -> AsyncGenerator[bytes, None]:
        async for now in pulls.watch(pull):
            yield data(PullAnswer.of(now))
        yield DONE

    return EventStream(events(), close=lambda: None)
