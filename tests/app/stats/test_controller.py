"""The routes: one frame, the stream, and who may abort."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from litestar import Litestar
from litestar.testing import AsyncTestClient

from app import settings as app_settings
from app.errors import respond
from app.lifespan import SERVER_STOPPING
from app.stats import StatsPlugin
from tests.app.stats.fakes import FakeEngine, FakeHost, FakePool, request, stats


@asynccontextmanager
async def client(mode: str = "open", key: str | None = None):
    host = FakeHost()
    engine = FakeEngine(stats(0.0, [(1, 7), (0, -1)], [request(7)]))
    settings = app_settings.make({"permission_mode": mode, **({"api_key": key} if key else {})})
    app = Litestar(plugins=[StatsPlugin(settings, FakePool(host))], exception_handlers={Exception: respond}, logging_config=None)
    host.become_ready(engine)
    async with AsyncTestClient(app) as http:
        http.engine = engine
        yield http


async def test_one_frame_as_json():
    async with client() as http:
        frame = (await http.get("/api/stats")).json()
    assert frame["model"]["state"] == "ready"
    assert frame["blocks"] == [[1, 7, 1], [0, -1, 1]]
    assert [row["id"] for row in frame["requests"]] == ["req-7"]


async def test_an_open_server_aborts_for_anybody():
    async with client() as http:
        response = await http.post("/api/requests/7/abort")
        assert (response.status_code, response.json()) == (202, {"uid": 7, "status": "accepted"})
        assert http.engine.aborted == [7]


async def test_a_request_that_the_figures_do_not_have_yet_can_be_aborted():
    async with client() as http:
        await http.get("/api/stats")
        http.engine.busy = asyncio.Event()
        http.engine.accepted.add(9)
        assert (await http.post("/api/requests/9/abort")).status_code == 202
        assert http.engine.aborted == [9]


async def test_an_unknown_request_is_not_found():
    async with client() as http:
        await http.get("/api/stats")
        response = await http.post("/api/requests/8/abort")
        assert response.status_code == 404 and "No request 8" in response.json()["error"]["message"]
        assert http.engine.aborted == []


@pytest.mark.parametrize("uid", ["-1", "x", "1.5"])
async def test_what_is_no_number_is_no_request(uid):
    async with client() as http:
        assert (await http.post(f"/api/requests/{uid}/abort")).status_code in (400, 404)


async def test_a_readonly_server_aborts_for_nobody():
    async with client("readonly", "secret") as http:
        await http.get("/api/stats")
        response = await http.post("/api/requests/7/abort", headers={"authorization": "Bearer secret"})
        assert response.status_code == 403 and "readonly" in response.json()["error"]["message"]
        assert http.engine.aborted == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer secret"}, 202),
        ({"x-api-key": "secret"}, 202),
    ],
)
async def test_a_server_in_key_mode_aborts_for_the_key(headers, status):
    async with client("key", "secret") as http:
        await http.get("/api/stats")
        assert (await http.post("/api/requests/7/abort", headers=headers)).status_code == status
        assert http.engine.aborted == ([7] if status == 202 else [])


async def test_the_frame_tells_what_the_permission_mode_is():
    async with client("readonly") as http:
        assert (await http.get("/api/stats")).json()["control"] == "readonly"


async def test_feeds_end_by_themselves_when_the_server_stops():
    app = Litestar(plugins=[StatsPlugin(app_settings.make(), FakePool(FakeHost()))], logging_config=None)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, timeout_graceful_shutdown=5))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient() as http, http.stream("GET", f"{url}/api/stats/stream") as response:
        lines = response.aiter_lines()
        assert await anext(lines) == "event: key"
        app.emit(SERVER_STOPPING)
        async with asyncio.timeout(5):
            assert [line async for line in lines][-1] == ""
    server.should_exit = True
    await asyncio.wait_for(serving, 5)
