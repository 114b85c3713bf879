"""What the guard lets through, and to whom."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from app.origins import Origins

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
KEY = "secret-key-of-this-test"


@pytest.mark.parametrize(
    "host, allowed",
    [
        ("127.0.0.1:8000", True),
        ("localhost", True),
        ("LOCALHOST:1234", True),
        ("[::1]:8000", True),
        ("app.localhost", True),
        ("host.docker.internal:8000", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8000", False),
        ("192.168.1.5:8000", False),
        ("", False),
    ],
)
async def test_only_names_of_this_machine_are_answered(client: Any, host: str, allowed: bool) -> None:
    for path in ("/health", "/v1/models", "/", "/nothing"):
        status = (await client.get(path, headers={"host": host})).status_code
        assert (status != 403) == allowed, path


async def test_configured_names_are_answered_too(serve: Any) -> None:
    client = await serve(allowed_hosts=("llm.example",))
    assert (await client.get("/health", headers={"host": "llm.example:443"})).status_code == 200
    assert (await client.get("/health", headers={"host": "x.llm.example"})).status_code == 403


async def test_addresses_are_answered_when_listening_to_the_network(serve: Any) -> None:
    client = await serve(host="0.0.0.0", api_key=KEY)
    assert (await client.get("/health", headers={"host": "192.168.1.5:8000"})).status_code == 200
    assert (await client.get("/health", headers={"host": "evil.example"})).status_code == 403


@pytest.mark.parametrize(
    "origin, allowed",
    [
        ("http://localhost:3000", True),
        ("http://127.0.0.1:5173", True),
        ("app://obsidian.md", True),
        ("vscode-webview://1a2b3c", True),
        ("http://127.0.0.1:8000", True),
        ("https://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1.evil.example:8000", False),
        ("null", False),
        ("http://[::1", False),
    ],
)
async def test_only_configured_origins_may_call(client: Any, origin: str, allowed: bool) -> None:
    posted = await client.post(CHAT, json=BODY, headers={"origin": origin})
    assert posted.status_code == (200 if allowed else 403)
    read = await client.get("/v1/models", headers={"origin": origin})
    for response in (posted, read):
        assert response.headers.get("access-control-allow-origin") == (origin if allowed else None)
        assert "Origin" in response.headers["vary"]


def test_no_setting_opens_the_server_to_origins_without_a_scheme() -> None:
    for patterns in (("*",), ("example.com",), ("app://", "http://localhost"), ("",)):
        assert not any(map(Origins(patterns).allow, ("null", "", "example.com", "//example.com"))), patterns
    assert Origins(("*",)).allow("https://any.example")
    assert Origins(("http://LOCALHOST:3000/",)).allow("http://localhost:3000")
    assert not Origins(("http://localhost:3000",)).allow("http://localhost:3001")


async def test_errors_carry_cors_headers(serve: Any) -> None:
    client = await serve(api_key=KEY)
    origin = {"origin": "http://localhost:3000"}
    key = {"authorization": f"Bearer {KEY}"}
    for response in (
        await client.post(CHAT, json=BODY, headers=origin),
        await client.post(CHAT, json={}, headers=origin | key),
        await client.get("/v1/nothing", headers=origin | key),
        await client.post(CHAT, content=b"x", headers=origin | key | {"content-type": "text/plain"}),
    ):
        assert response.status_code in (400, 401, 404, 415)
        assert response.headers["access-control-allow-origin"] == "http://localhost:3000"


async def test_a_page_of_another_site_without_an_origin_header_is_refused(client: Any) -> None:
    response = await client.post(CHAT, json=BODY, headers={"sec-fetch-site": "cross-site"})
    assert response.status_code == 403


async def test_the_chat_page_takes_orders_from_itself_only(client: Any) -> None:
    form = {"text": "x"}
    for origin in ("http://localhost:3000", "app://x", "https://evil.example"):
        assert (await client.post("/ui/chats", data=form, headers={"origin": origin})).status_code == 403
    page = await client.get("/", headers={"origin": "http://localhost:3000"})
    assert "access-control-allow-origin" not in page.headers


async def test_the_chat_page_works_behind_a_proxy_whose_name_is_configured(serve: Any) -> None:
    client = await serve(allowed_hosts=("llm.example",))
    for origin, status in (("https://llm.example", 400), ("https://evil.example", 403)):
        assert (await client.post("/ui/chats", data={}, headers={"origin": origin})).status_code == status


async def test_a_preflight_is_answered_before_the_key_is_asked_for(serve: Any) -> None:
    client = await serve(api_key=KEY)
    headers = {
        "origin": "http://localhost:3000",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type, x-stainless-os, anthropic-version, openai-beta, x-evil",
        "access-control-request-private-network": "true",
    }
    response = await client.options(CHAT, headers=headers)
    assert response.status_code == 204 and response.content == b""
    assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
    granted = response.headers["access-control-allow-headers"].split(", ")
    assert granted == ["anthropic-version", "authorization", "content-type", "openai-beta", "x-stainless-os"]
    assert "POST" in response.headers["access-control-allow-methods"]
    assert response.headers["access-control-allow-private-network"] == "true"
    stranger = await client.options(CHAT, headers=headers | {"origin": "https://evil.example"})
    assert stranger.status_code == 204 and "access-control-allow-origin" not in stranger.headers
    assert (await client.options("/v1/nothing")).status_code == 204


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer {KEY}"},
        {"x-api-key": KEY},
        {"api-key": KEY},
        {"authorization": "Basic !", "x-api-key": KEY},
        {"authorization": "Basic " + base64.b64encode(f"me:{KEY}".encode()).decode()},
    ],
)
async def test_the_key_is_taken_from_any_of_the_usual_headers(serve: Any, headers: dict[str, str]) -> None:
    client = await serve(api_key=KEY)
    assert (await client.post(CHAT, json=BODY, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer "}, {"authorization": "Bearer x"}, {"authorization": "Basic !"}, {"x-api-key": KEY + "x"}],
)
async def test_without_the_key_everything_but_the_probes_is_closed(serve: Any, headers: dict[str, str]) -> None:
    client = await serve(api_key=KEY)
    for path in ("/v1/models", "/models/", "//v1/models", "/", "/metrics", "/schema", "/api/stats", "/static/x", "/nothing"):
        response = await client.get(path, headers=headers)
        assert response.status_code == 401, path
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"].startswith(("Bearer", "Basic"))
    for path in ("/health", "/health/", "/health/ready"):
        assert (await client.get(path, headers=headers)).status_code == 200


async def test_any_key_or_none_is_fine_when_none_is_configured(client: Any) -> None:
    for headers in ({}, {"authorization": "Bearer anything"}, {"x-api-key": "x"}):
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize("path", [CHAT, "/chat/completions", "/v1/completions", "/tokenize", "//v1/chat/completions"])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""])
async def test_only_json_is_taken_on_the_endpoint(client: Any, path: str, kind: str) -> None:
    response = await client.post(path, content=b'{"messages": []}', headers={"content-type": kind})
    assert response.status_code == 415 and "application/json" in response.json()["error"]["message"]


async def test_json_may_name_a_charset(client: Any) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    response = await client.post("/tokenize", content=b'{"prompt": "Hi"}', headers=headers)
    assert response.status_code == 200


async def test_nothing_is_sniffed(client: Any) -> None:
    for path in ("/v1/models", "/", "/nothing"):
        assert (await client.get(path)).headers["x-content-type-options"] == "nosniff"
