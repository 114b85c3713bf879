"""The Models view of the page: what is here and how it stands, load and unload, download, delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import URLEncodedBody
from msgspec import structs

from app import pages
from app.catalog import shelf
from app.connection import while_connected
from app.models.actions import Actions
from app.models.pool import ModelPool
from app.models.pulls import Pulls
from app.models.schemas import ModelAnswer, OfferAnswer, PullAnswer
from app.options import format_bytes
from app.settings import BY_NAME, Settings
from app.stats import permission
from ui.render import render


@dataclass(slots=True)
class ModelForm:
    model: str


@dataclass(slots=True)
class PullForm:
    pull: int


class ModelsPage(Controller):
    """Whole page, and pieces for htmx. The list is asked for again each second, so that it shows what others do too."""

    include_in_schema = False
    exception_handlers = {Exception: pages.describe}

    @get("/catalogue")
    async def page(
        self,
        model_pool: NamedDependency[ModelPool],
        model_pulls: NamedDependency[Pulls],
        models_settings: NamedDependency[Settings],
    ) -> Response[str]:
        return pages.html(render("models.html", **await _shown(model_pool, model_pulls, models_settings)))

    @get("/ui/models")
    async def list(
        self,
        model_pool: NamedDependency[ModelPool],
        model_pulls: NamedDependency[Pulls],
        models_settings: NamedDependency[Settings],
    ) -> Response[str]:
        return pages.html(render("models_list.html", **await _shown(model_pool, model_pulls, models_settings)))

    @post("/ui/models/load", status_code=204)
    async def load(
        self,
        request: Request[Any, Any, Any],
        data: URLEncodedBody[ModelForm],
        model_actions: NamedDependency[Actions],
        models_settings: NamedDependency[Settings],
    ) -> None:
        permission.check(models_settings, request)
        await model_actions.load(data.model)

    @post("/ui/models/unload", status_code=204)
    async def unload(
        self,
        request: Request[Any, Any, Any],
        data: URLEncodedBody[ModelForm],
        model_actions: NamedDependency[Actions],
        models_settings: NamedDependency[Settings],
    ) -> None:
        permission.check(models_settings, request)
        await model_actions.unload(data.model)

    @post("/ui/models/remove", status_code=204)
    async def remove(
        self,
        request: Request[Any, Any, Any],
        data: URLEncodedBody[ModelForm],
        model_actions: NamedDependency[Actions],
        models_settings: NamedDependency[Settings],
    ) -> None:
        permission.check(models_settings, request)
        await model_actions.remove(data.model)

    @post("/ui/models/offer", status_code=200)
    async def offer(
        self,
        request: Request[Any, Any, Any],
        data: URLEncodedBody[ModelForm],
        model_actions: NamedDependency[Actions],
        models_settings: NamedDependency[Settings],
    ) -> Response[str]:
        permission.check(models_settings, request)
        offered = await while_connected(request.receive, model_actions.offer(data.model.strip()))
        return pages.html(render("models_offer.html", offer=OfferAnswer.of(offered), bytes=format_bytes))

    @post("/ui/models/pull", status_code=200)
    async def pull(
        self,
        request: Request[Any, Any, Any],
        data: URLEncodedBody[ModelForm],
        model_pulls: NamedDependency[Pulls],
        models_settings: NamedDependency[Settings],
    ) -> Response[str]:
        """The list of choices has done its work, and goes."""
        permission.check(models_settings, request)
        model_pulls.start(data.model.strip())
        return pages.html("")

    @post("/ui/models/cancel", status_code=204)
    async def cancel(
        self,
        request: Request[Any, Any, Any],
        data: URLEncodedBody[PullForm],
        model_pulls: NamedDependency[Pulls],
        models_settings: NamedDependency[Settings],
    ) -> None:
        permission.check(models_settings, request)
        if (pull := model_pulls.get(data.pull)) is not None:
            model_pulls.cancel(pull)


async def _shown(pool: ModelPool, pulls: Pulls, settings: Settings) -> dict[str, Any]:
    await pool.look()
    here = {host.model.name.lower() for host in pool.hosts if host.model is not None}
    return {
        "models": [_in_words(ModelAnswer.of(host, pool.main)) for host in pool.hosts],
        "pulls": [PullAnswer.of(pull) for pull in pulls.all],
        "shelf": [entry for entry in shelf.SHELF if entry.name not in here],
        "may_act": settings.orchestrator.permission_mode != "readonly",
        "bytes": format_bytes,
    }


def _in_words(model: ModelAnswer) -> ModelAnswer:
    """With its settings as a person would write them."""
    return structs.replace(model, settings={name: BY_NAME[name].show(value) for name, value in model.settings.items()})
