"""Several models over HTTP: the list, the swap, who waits and who is told what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import torch

from engine.errors import ConfigError, ModelLoadError, PagewellError
from tests.app.http.conftest import Server

ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.models.room.TURN_S", 0.2)


def body(model: str, **fields: Any) -> dict[str, Any]:
    return ASK | {"model": model} | fields


async def chat(client: Any, model: str, **fields: Any) -> Any:
    return await client.post("/v1/chat/completions", json=body(model, **fields))


async def states(client: Any) -> dict[str, str]:
    return {entry["id"]: entry["state"] for entry in (await client.get("/v1/models")).json()["data"]}


async def test_the_list_has_what_is_loaded_and_what_can_be(serve: Callable[..., Any]) -> None:
    client = await serve(others=("b", "c"))
    assert await states(client) == {"fake": "ready", "b": "unloaded", "c": "unloaded"}
    entry = (await client.get("/v1/models/b")).json()
    assert (entry["id"], entry["loaded"]) == ("b", False)
    assert (await chat(client, "b")).json()["model"] == "b"
    assert await states(client) == {"fake": "unloaded", "b": "ready", "c": "unloaded"}
    assert (await client.get("/v1/models/B")).json()["max_model_len"] == 256


async def test_models_that_fit_answer_beside_each_other(live: Callable[..., Server]) -> None:
    server = live(others=("b",), together=True, step_s=0.005)
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        answers = await asyncio.gather(*(chat(client, name, max_tokens=20) for name in ("fake", "b", "fake", "b")))
        assert [a.json()["model"] for a in answers] == ["fake", "b", "fake", "b"]
        assert await states(client) == {"fake": "ready", "b": "ready"}


async def test_an_unknown_model_is_a_404_with_the_near_names(serve: Callable[..., Any]) -> None:
    client = await serve(others=("qwen3-4b",))
    for fields in ({}, {"stream": True}):
        answer = await chat(client, "qwen-3-4b", **fields)
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
        assert "`qwen3-4b`" in answer.json()["error"]["message"]


async def test_a_request_for_another_model_waits_for_the_answer_that_runs(live: Callable[..., Server]) -> None:
    server = live(others=("b",), step_s=0.02)
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        long = asyncio.create_task(chat(client, "fake", max_tokens=60))
        while not (await client.get("/api/stats")).json()["requests"]:
            await asyncio.sleep(0.01)
        other = asyncio.create_task(chat(client, "b"))
        while (await states(client))["b"] != "waiting":
            assert not other.done()
        waiting: dict[str, Any] = {}
        while not waiting:
            frame = (await client.get("/api/stats")).json()
            waiting = next((model for model in frame["models"] if model["name"] == "b"), {})
        assert waiting["state"] == "waiting" and waiting["waits_for"] == ["fake"]
        assert {row["model"] for row in frame["requests"]} == {"fake"}
        assert (await long).json()["usage"]["completion_tokens"] == 60
        assert (await other).json()["model"] == "b"


async def test_a_stream_that_waits_for_its_model_is_kept_alive(
    live: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.sse.SILENCE_S", 0.1)
    server = live(others=("b",), step_s=0.02)
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        long = asyncio.create_task(chat(client, "fake", max_tokens=60))
        while not (await client.get("/api/stats")).json()["requests"]:
            await asyncio.sleep(0.01)
        async with client.stream("POST", "/v1/chat/completions", json=body("b", stream=True)) as stream:
            assert stream.status_code == 200
            lines = [line async for line in stream.aiter_lines() if line]
        assert lines[0] == ": keep-alive" and lines.count(": keep-alive") > 3 and lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["model"] == "b"
        assert (await long).json()["usage"]["completion_tokens"] == 60


async def test_a_client_that_leaves_while_it_waits_costs_no_swap(live: Callable[..., Server]) -> None:
    server = live(others=("b",), step_s=0.02)
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        long = asyncio.create_task(chat(client, "fake", max_tokens=60))
        while not (await client.get("/api/stats")).json()["requests"]:
            await asyncio.sleep(0.01)
        for stream in (False, True):
            with pytest.raises(httpx.TimeoutException):
                await client.post("/v1/chat/completions", json=body("b", stream=stream), timeout=0.3)
            while (await states(client))["b"] != "unloaded":
                await asyncio.sleep(0.01)
        assert (await chat(client, "fake")).status_code == 200
        assert (await long).json()["usage"]["completion_tokens"] == 60
        assert await states(client) == {"fake": "ready", "b": "unloaded"}


async def test_two_clients_that_take_turns_both_get_their_answers(live: Callable[..., Server]) -> None:
    server = live(others=("b",), step_s=0.002)

    async def work(model: str) -> list[str]:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            return [(await chat(client, model)).json()["model"] for _ in range(6)]

    assert await asyncio.gather(work("fake"), work("b"), work("fake")) == [["fake"] * 6, ["b"] * 6, ["fake"] * 6]


@pytest.mark.parametrize(
    ("error", "is_worth_asking"),
    [
        (OSError("the disk is away"), True),
        (PagewellError("Something is in the way."), True),
        (ModelLoadError("It ends early."), False),
        (ConfigError("The model does not fit into memory."), False),
        (MemoryError(), False),
        (torch.OutOfMemoryError("CUDA out of memory."), False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_clients_are_told_whether_a_failed_model_is_worth_asking_for_again(
    serve: Callable[..., Any], error: Exception, is_worth_asking: bool
) -> None:
    client = await serve(others=("b",))

    async def load(_: object) -> Any:
        raise error

    client.server.pool.get("b")._load = load
    for _ in range(2):
        answer = await chat(client, "b")
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "model_failed"
        if is_worth_asking:
            assert 1 <= int(answer.headers["retry-after"]) <= 60 and "x-should-retry" not in answer.headers
        else:
            assert answer.headers["x-should-retry"] == "false" and "retry-after" not in answer.headers


async def test_a_load_that_fails_is_told_and_the_old_model_answers_on(serve: Callable[..., Any]) -> None:
    client = await serve(others=("b",))
    broken = client.server.pool.get("b")

    async def load(_: object) -> Any:
        raise ModelLoadError("/models/b.gguf ends early.", "Download it again.")

    broken._load = load
    answer = await chat(client, "b")
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "model_failed"
    assert answer.json()["error"]["message"] == "The model b could not be loaded: /models/b.gguf ends early. Download it again."
    assert answer.headers["x-should-retry"] == "false"
    stream = await chat(client, "b", stream=True)
    assert stream.status_code == 503 or "ends early" in stream.text
    assert (await chat(client, "fake")).status_code == 200
    assert (await states(client))["b"] == "failed"
    frame = (await client.get("/api/stats")).json()
    assert [(m["name"], m["state"]) for m in frame["models"]] == [("fake", "ready"), ("b", "failed")]
    assert "ends early" in frame["models"][1]["error"]


async def test_statistics_are_of_all_models_in_memory(serve: Callable[..., Any]) -> None:
    client = await serve(others=("b",), together=True, n_blocks=64)
    for name in ("fake", "b", "b"):
        await chat(client, name)
    await asyncio.sleep(0.3)
    frame = (await client.get("/api/stats")).json()
    assert [m["name"] for m in frame["models"]] == ["fake", "b"] and frame["model"] == frame["models"][0]
    assert frame["totals"]["n_blocks"] == 128 == sum(count for _, _, count in frame["blocks"])
    assert frame["totals"]["n_finished"] == 3
    assert sorted(row["model"] for row in frame["requests"]) == ["b", "b", "fake"]
    assert len({row["uid"] for row in frame["requests"]}) == 3
    metrics = (await client.get("/metrics")).text
    for name, n in (("fake", 1), ("b", 2)):
        assert f'vllm_requests_total{{model_name="{name}",status="success"}} {n}.0' in metrics
        assert f'pagewell_kv_blocks{{model_name="{name}",state="free"}}' in metrics
    families = [line.split()[2] for line in metrics.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))


async def test_an_abort_reaches_the_engine_that_has_the_request(live: Callable[..., Server]) -> None:
    server = live(others=("b",), together=True, step_s=0.02)
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        answers = {name: asyncio.create_task(chat(client, name, max_tokens=200)) for name in ("fake", "b")}
        uids: dict[str, int] = {}
        while len(uids) < 2:
            rows = (await client.get("/api/stats")).json()["requests"]
            uids = {row["model"]: row["uid"] for row in rows if row["state"] == "running"}
        assert (await client.post(f"/api/requests/{uids['b']}/abort")).status_code == 202
        await answers["b"]
        assert not answers["fake"].done()
        assert (await client.post(f"/api/requests/{uids['fake']}/abort")).status_code == 202
        await answers["fake"]


async def test_a_pin_lies_in_the_cache_of_its_model(serve: Callable[..., Any]) -> None:
    client = await serve(others=("b",), together=True)
    pin = (await client.post("/api/pins", json={"model": "b", "prompt": "x" * 40})).json()
    assert pin["model"] == "b" and (await client.get("/api/pins")).json()["pins"] == [pin]
    assert (await client.delete(f"/api/pins/{pin['id']}")).status_code == 204
    assert (await client.get("/api/pins")).json()["pins"] == []


async def test_a_server_is_ready_while_another_model_has_the_room(serve: Callable[..., Any]) -> None:
    client = await serve(others=("b",))
    await chat(client, "b")
    ready = await client.get("/health/ready")
    assert ready.status_code == 200 and ready.json()["status"] == "unloaded"
    assert (await chat(client, "fake")).status_code == 200
