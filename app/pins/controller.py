"""POST, GET /api/pins, DELETE /api/pins/{id}."""

from __future__ import annotations

from typing import Annotated

from litestar import Controller, Request, delete, get, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import JSONBody, Parameter

from app.body import JsonBody
from app.models.pool import ModelPool
from app.openai import prompts
from app.pins.schemas import PinAnswer, PinList, PinRequest
from app.settings import Settings
from app.stats import permission


class PinsController(Controller):
    """Prefixes that are not evicted: a system prompt that every request begins with, say."""

    path = "/api/pins"
    tags = ("KV cache",)
    dto = JsonBody
    return_dto = None

    @post(summary="Compute a prefix and keep it in the KV cache")
    async def pin(
        self,
        request: Request,
        data: JSONBody[PinRequest],
        model_pool: NamedDependency[ModelPool],
        pin_settings: NamedDependency[Settings],
    ) -> PinAnswer:
        permission.check(pin_settings, request)
        host = await model_pool.find(data.model)
        async with host.use() as engine:
            data.add_generation_prompt = bool(data.add_generation_prompt)
            token_ids = await prompts.text_or_chat(engine, data)
            return PinAnswer(*await engine.pin(token_ids, cache_salt=data.cache_salt or ""), host.name)

    @get(summary="What is pinned, and its price")
    async def pins(self, model_pool: NamedDependency[ModelPool]) -> PinList:
        loaded = [(host.name, engine) for host in model_pool.hosts if (engine := host.current) is not None]
        return PinList([PinAnswer(*pin, name) for name, engine in loaded for pin in await engine.pins()])

    @delete("/{pin_id:int}", summary="Lift a pin", status_code=204)
    async def unpin(
        self,
        request: Request,
        pin_id: Annotated[int, Parameter(ge=0)],
        model_pool: NamedDependency[ModelPool],
        pin_settings: NamedDependency[Settings],
    ) -> None:
        permission.check(pin_settings, request)
        for host in model_pool.hosts:
            if host.current is not None and await host.current.unpin(pin_id):
                return
        raise NotFoundException(f"There is no pin {pin_id}.")
