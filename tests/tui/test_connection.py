"""The line to the server: absent, refused, foreign, lost, and back again by itself."""

from __future__ import annotations

import asyncio

import pytest

from tests.tui.feed_server import FeedServer, serving
from tests.tui.frames import frame, key_event
from tests.tui.screen import dashboard, text, until, until_text
from tui.feed.client import FeedClient, FeedError, is_loopback


async def test_a_server_that_is_not_there_is_named_and_found_once_it_starts():
    server = FeedServer(key_event(frame()))
    await server.start()
    await server.stop()
    async with dashboard(server.url, (80, 24)) as pilot:
        await until_text(pilot, f"Nothing answers at {server.url}", "pagewell serve", "connection refused")
        await server.start()
        await until_text(pilot, "agent-one", "live")
        await server.stop()


async def test_a_lost_server_is_told_and_followed_again():
    async with serving(key_event(frame())) as server, dashboard(server.url) as pilot:
        await until_text(pilot, "agent-one")
        await server.stop()
        await until_text(pilot, "is gone", "feed lost")
        server.first = key_event(frame(1, rows=()))
        await server.start()
        await until_text(pilot, "live")
        assert "agent-one" not in text(pilot)


async def test_a_server_that_wants_a_key_says_how_to_give_it():
    async with serving() as server, dashboard(server.url) as pilot:
        server.status = 401
        await until_text(pilot, "wants an API key", "--api-key", "PAGEWELL_API_KEY")


@pytest.mark.parametrize(("status", "content_type"), [(404, "text/event-stream"), (200, "text/html")])
async def test_another_program_at_that_address_is_told(status, content_type):
    async with serving(b"<html>") as server:
        server.status, server.content_type = status, content_type
        async with dashboard(server.url) as pilot:
            await until_text(pilot, "has no stats feed")


async def test_garbage_in_the_feed_is_no_crash():
    async with serving(b"event: key\ndata: {broken\n\n") as server, dashboard(server.url) as pilot:
        await until_text(pilot, "has no stats feed")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://127.0.0.1:99999", "ftp://host", "http://"])
def test_an_address_that_is_none_is_told(url):
    with pytest.raises(FeedError, match="is no address of a server"):
        FeedClient(url)


async def test_the_wait_between_tries_grows_and_starts_again_after_success():
    server = FeedServer(key_event(frame()))
    await server.start()
    await server.stop()
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 7:
            await server.start()
        if len(waits) == 8:
            await asyncio.Event().wait()

    client = FeedClient(server.url, sleep=sleep)
    following = asyncio.create_task(client.run())
    while client.connection.state != "live":
        await asyncio.sleep(0.01)
    await server.stop()
    while len(waits) < 8:
        await asyncio.sleep(0.01)
    following.cancel()
    await client.close()
    assert waits == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 0.5]


async def test_the_key_travels_with_every_request():
    async with serving(key_event(frame())) as server:
        client = FeedClient(server.url, "secret")
        following = asyncio.create_task(client.run())
        while not server.n_listeners:
            await asyncio.sleep(0.01)
        await client.abort(3)
        following.cancel()
        await client.close()
        assert server.keys == ["Bearer secret", "Bearer secret"]


async def test_a_feed_that_falls_silent_is_lost(monkeypatch):
    monkeypatch.setattr("tui.feed.client._SILENCE_S", 0.5)
    async with serving(key_event(frame())) as server:
        server.keep_alive_s = 60.0
        async with dashboard(server.url) as pilot:
            await until(pilot, lambda: "silent" in pilot.app.client.connection.detail)
            assert pilot.app.client.connection.state in ("lost", "absent")


async def test_a_missing_key_is_explained_to_scripts():
    async with serving() as server:
        server.abort_answer = (401, b'{"error":{"message":"Incorrect API key provided."}}')
        client = FeedClient(server.url)
        with pytest.raises(FeedError, match=r"Incorrect API key provided\. Pass --api-key"):
            await client.abort(1)
        await client.close()


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://10.1.2.3:8000", False),
        ("http://pagewell.example", False),
    ],
)
def test_only_this_machine_is_reached_past_the_proxy(url, local):
    assert is_loopback(url) is local
