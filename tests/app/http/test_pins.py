"""/api/pins over the fake runner: what is pinned stays in the cache, and costs what it says."""

from __future__ import annotations

from typing import Any

PREFIX = "You are a careful assistant. " * 3


async def cached(client: Any, prompt: str) -> int:
    answer = (await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1})).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


async def test_a_pinned_prefix_is_found_by_every_request_until_it_is_unpinned(client: Any) -> None:
    made = await client.post("/api/pins", json={"prompt": PREFIX})
    assert made.status_code == 201, made.text
    pin = made.json()
    assert pin["tokens"] == len(PREFIX) // 4 * 4 == pin["blocks"] * 4 and pin["bytes"] > 0
    assert (await client.get("/api/pins")).json() == {"pins": [pin]}
    assert await cached(client, PREFIX + "And now this.") == pin["tokens"]
    assert f'state="pinned"}} {pin["blocks"]:.1f}' in (await client.get("/metrics")).text
    assert (await client.delete(f"/api/pins/{pin['id']}")).status_code == 204
    assert (await client.get("/api/pins")).json() == {"pins": []}
    assert (await client.delete(f"/api/pins/{pin['id']}")).status_code == 404


async def test_messages_are_pinned_without_the_beginning_of_an_answer(client: Any) -> None:
    messages = [{"role": "system", "content": PREFIX}]
    tokens = (await client.post("/tokenize", json={"messages": messages, "add_generation_prompt": False})).json()["count"]
    pin = (await client.post("/api/pins", json={"messages": messages})).json()
    assert pin["tokens"] == tokens // 4 * 4


async def test_another_salt_does_not_find_it(client: Any) -> None:
    prefix = "Only mine. " * 8
    await client.post("/api/pins", json={"prompt": prefix, "cache_salt": "mine"})
    body = {"prompt": prefix + "x", "max_tokens": 1}
    for salt, found in (("mine", True), ("yours", False), (None, False)):
        answer = (await client.post("/v1/completions", json=body | {"cache_salt": salt})).json()
        assert (answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) is found


async def test_more_than_half_of_the_cache_cannot_be_pinned(client: Any) -> None:
    refused = None
    for i in range(100):
        response = await client.post("/api/pins", json={"prompt": f"{i:03}" + "x" * 200})
        if response.status_code != 201:
            refused = response
            break
    assert refused is not None and refused.status_code == 400
    assert "cannot be pinned" in refused.json()["error"]["message"] and "at most" in refused.json()["error"]["message"]
    assert await cached(client, "an answer like any other") == 0, "there is room for those that are not pinned"


async def test_what_is_no_prefix_is_refused_by_name(client: Any) -> None:
    assert (await client.post("/api/pins", json={})).json()["error"]["param"] == "prompt"
    assert (await client.post("/api/pins", json={"prompt": "x" * 4000})).json()["error"]["code"] == "context_length_exceeded"
    assert (await client.post("/api/pins", json={"prompt": "x", "model": "no"})).status_code == 404
