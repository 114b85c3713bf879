"""Paths, probes, models, tokens, metrics."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from msgspec import structs

from engine.errors import ModelLoadError

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}


@pytest.mark.parametrize("prefix", ["/v1", ""])
@pytest.mark.parametrize("slash", ["", "/"])
async def test_paths_work_with_and_without_v1_and_with_a_trailing_slash(client: Any, prefix: str, slash: str) -> None:
    assert (await client.post(f"{prefix}/chat/completions{slash}", json=CHAT)).status_code == 200
    assert (await client.post(f"{prefix}/completions{slash}", json={"prompt": "x", "max_tokens": 1})).status_code == 200
    assert (await client.get(f"{prefix}/models{slash}")).json()["data"][0]["id"] == "fake"
    assert (await client.get(f"{prefix}/models/fake{slash}")).json()["id"] == "fake"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", ["/", "/v1/models", "/health", "/metrics"])
async def test_get_and_head_answer_200(client: Any, method: str, path: str) -> None:
    response = await client.request(method, path)
    assert response.status_code == 200
    assert (response.content == b"") == (method == "HEAD")


async def test_head_of_a_stream_ends(serve: Any) -> None:
    client = await serve()
    async with asyncio.timeout(5):
        response = await client.head("/api/stats/stream")
    assert response.status_code == 200 and response.content == b""
    assert response.headers["content-type"].startswith("text/event-stream")


async def test_ids_that_only_the_tokenizer_has_are_refused(serve: Any) -> None:
    client = await serve()
    engine = client.server.engine
    engine.info = structs.replace(engine.info, n_vocab=100)
    assert (await client.post("/detokenize", json={"tokens": [99]})).status_code == 200
    assert (await client.post("/detokenize", json={"tokens": [100]})).status_code == 400


async def test_a_model_entry_has_the_window_in_force_under_every_name(client: Any) -> None:
    entry = (await client.get("/v1/models/fake")).json()
    assert entry["object"] == "model" and isinstance(entry["created"], int) and entry["owned_by"]
    assert entry["max_model_len"] == entry["context_length"] == entry["meta"]["n_ctx"] == 256
    assert entry["state"] == "ready" and entry["loaded"] is True and "completion" in entry["capabilities"]


async def test_tokens_and_text_are_inverse(client: Any) -> None:
    answer = (await client.post("/tokenize", json={"prompt": "Hé", "return_token_strs": True})).json()
    assert answer["tokens"] == list("Hé".encode()) and answer["count"] == 3 and answer["max_model_len"] == 256
    assert len(answer["token_strs"]) == 3
    assert (await client.post("/detokenize", json={"tokens": answer["tokens"]})).json() == {"prompt": "Hé"}
    assert (await client.post("/tokenize", json={"content": "x"})).json()["count"] == 1
    for body in ({"tokens": [9999]}, {"tokens": [257]}, {"tokens": [-1]}, {"tokens": "x"}, {}):
        assert (await client.post("/detokenize", json=body)).status_code == 400
    assert (await client.post("/tokenize", json={})).status_code == 400


async def test_the_schema_lists_the_endpoint_and_loads_nothing_from_elsewhere(client: Any) -> None:
    schema = (await client.get("/schema")).json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/metrics"} <= schema["paths"].keys()
    assert (await client.get("/schema/openapi.json")).json() == schema


async def test_while_the_model_loads_the_list_answers_and_generation_says_when_to_come_back(serve: Any) -> None:
    release = asyncio.Event()

    async def load(progress: Any) -> Any:
        progress(25, 100)
        while not release.is_set():
            await asyncio.sleep(0.01)
        raise ModelLoadError("The file is damaged.", "Download it again.")

    client = await serve(ready=False, load=load)
    assert (await client.get("/health")).status_code == 200
    waiting = await client.get("/health/ready")
    assert waiting.status_code == 503 and waiting.json()["status"] == "loading" and int(waiting.headers["retry-after"]) > 0
    (entry,) = (await client.get("/v1/models")).json()["data"]
    assert entry["id"] == "fake" and entry["state"] == "loading" and entry["progress"] == 0.25 and not entry["loaded"]
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "x"}), ("/tokenize", {"prompt": "x"})):
        response = await client.post(path, json=body)
        assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
        assert response.json()["error"]["code"] == "model_loading"
    assert (await client.get("/metrics")).status_code == 200
    release.set()
    while client.server.host.state == "loading":
        await client.get("/health")
    response = await client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 503 and response.json()["error"]["code"] == "model_failed"
    assert "damaged" in response.json()["error"]["message"] and response.headers["x-should-retry"] == "false"
    assert (await client.get("/health/ready")).json()["error"].startswith("The file is damaged")


async def test_an_idle_model_is_unloaded_and_loaded_again_by_the_next_request(serve: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("app.models.host._WATCH_S", 0.02)
    client = await serve(idle_timeout_s=0.1)
    host = client.server.host
    for _ in range(200):
        if host.state == "unloaded":
            break
        await asyncio.sleep(0.02)
    entry = (await client.get("/v1/models")).json()["data"][0]
    assert entry["state"] == "unloaded" and entry["capabilities"] == ["completion", "chat"]
    assert (await client.get("/health/ready")).status_code == 200
    assert (await client.get("/metrics")).status_code == 200 and host.state == "unloaded"
    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert host.state == "ready"


async def test_a_dead_engine_is_a_503_and_a_new_one_is_loaded(serve: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("app.models.host._WATCH_S", 0.02)
    client = await serve()
    host, dead, go = client.server.host, client.server.engine, threading.Event()
    load = host._load

    async def load_later(progress: Any) -> Any:
        while not go.is_set():
            await asyncio.sleep(0.01)
        return await load(progress)

    host._load = load_later
    client.blocking_portal.call(dead.close)
    response = await client.post("/v1/chat/completions", json=CHAT)
    assert response.status_code == 503 and response.json()["error"]["code"] in ("engine_dead", "model_loading")
    go.set()
    for _ in range(200):
        if client.server.host.current not in (None, dead):
            break
        await asyncio.sleep(0.02)
    assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


def samples(text: str) -> dict[str, float]:
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in rows}


async def test_metrics_have_vllms_names_and_count_what_happened(serve: Any) -> None:
    client = await serve()
    for _ in range(2):
        await client.post("/v1/chat/completions", json={**CHAT, "n": 2})
    label = '{model_name="fake"}'
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = samples(response.text)
    assert found[f"vllm:generation_tokens_total{label}"] == found[f"vllm_tokens_generated_total{label}"] == 12
    assert found[f"vllm:prompt_tokens_total{label}"] > 0
    assert found[f"vllm:prefix_cache_hits_total{label}"] > 0
    assert found[f"vllm:prefix_cache_queries_total{label}"] > found[f"vllm:prefix_cache_hits_total{label}"]
    assert found['vllm:request_success_total{finished_reason="length",model_name="fake"}'] == 4
    assert found['vllm_requests_total{model_name="fake",status="success"}'] == 2
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm_requests_in_flight",
        "vllm_num_requests_preempted",
        "vllm_gpu_utilization",
    ):
        assert name + label in found
    for name, count in (
        ("vllm:time_to_first_token_seconds", 2),
        ("vllm:inter_token_latency_seconds", 8),
        ("vllm:e2e_request_latency_seconds", 2),
        ("vllm:request_queue_time_seconds", 2),
        ("vllm_request_latency_seconds", 2),
    ):
        assert found[f"{name}_count{label}"] == count, name
