"""GET /api/stats, GET /api/stats/stream, POST /api/requests/{uid}/abort."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Controller, Request, get, post
from litestar.exceptions import NotFoundException
from litestar.params import Parameter
from litestar.response import Stream
from litestar.status_codes import HTTP_202_ACCEPTED

from app.settings import Settings
from app.stats import permission, stream
from app.stats.frames import Frame
from app.stats.sampler import Sampler


class Aborted(msgspec.Struct, frozen=True):
    """An abort that was handed to the engine; it takes effect before the engine's next step."""

    uid: int
    status: str = "accepted"


class StatsController(Controller):
    """What the engine is doing, and the one action on it."""

    path = "/api"
    tags = ("Statistics",)

    @get("/stats", summary="One frame of the engine's statistics")
    async def frame(self, stats_sampler: Sampler) -> Frame:
        return await stats_sampler.fresh_frame()

    @get(
        "/stats/stream",
        summary="Server-sent events: a key frame, then what changed, four times a second",
        media_type="text/event-stream",
    )
    async def feed(self, stats_sampler: Sampler) -> Stream:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return Stream(stream.events(stats_sampler), media_type="text/event-stream", headers=headers)

    @post("/requests/{uid:int}/abort", summary="End a request of anybody's", status_code=HTTP_202_ACCEPTED)
    async def abort(
        self,
        request: Request,
        stats_sampler: Sampler,
        stats_settings: Settings,
        uid: Annotated[int, Parameter(ge=0, description="The engine's number of the request, as the frames show it.")],
    ) -> Aborted:
        permission.check(stats_settings, request)
        if not stats_sampler.abort(uid):
            raise NotFoundException(f"No request {uid} is waiting or running.")
        return Aborted(uid)
