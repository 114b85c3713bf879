"""Sockets against a real uvicorn: the first bytes, silence, and clients that leave in every phase."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from engine.errors import ModelLoadError
from tests.app.http.conftest import Server
from tests.app.http.test_chat import events

LONG = {"messages": [{"role": "user", "content": "x" * 100}], "ignore_eos": True}
STEP_S = 0.05


def send(server: Server, body: dict[str, Any], path: str = "/v1/chat/completions") -> socket.socket:
    """A socket on which this request was sent and nothing read yet."""
    content = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    sock = socket.create_connection((host, int(port)), timeout=10)
    sock.sendall(head.encode() + content)
    return sock


def read_until(sock: socket.socket, wanted: bytes, seconds: float = 10.0) -> bytes:
    received = b""
    deadline = time.monotonic() + seconds
    while wanted not in received:
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        part = sock.recv(65536)
        assert part, received
        received += part
    return received


def gauges(server: Server) -> tuple[int, int, int]:
    """(running, waiting, blocks in use)"""
    text = httpx.get(f"{server.url}/metrics").text
    rows = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    names = (
        'vllm:num_requests_running{model_name="fake"}',
        'vllm:num_requests_waiting{model_name="fake"}',
        'pagewell_kv_blocks{model_name="fake",state="used"}',
    )
    return tuple(int(float(rows[name])) for name in names)  # type: ignore[return-value]


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)
    return time.monotonic() - began


def hang_up(sock: socket.socket, how: str) -> None:
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@contextmanager
def in_phase(live: Callable[..., Server], phase: str, body: dict[str, Any], path: str) -> Iterator[tuple[Server, socket.socket]]:
    """A request that has reached this phase: waiting behind another, in mid-prompt, or decoding."""
    if phase == "queue":
        server = live(step_s=STEP_S, engine={"max_num_seqs": 1})
        other = send(server, {**LONG, "max_tokens": 150})
        wait_for(lambda: gauges(server)[0] == 1)
        sock = send(server, body, path)
        wait_for(lambda: gauges(server)[1] == 1)
        yield server, sock
        other.close()
    elif phase == "prefill":
        server = live(step_s=STEP_S, engine={"max_num_batched_tokens": 16, "max_num_seqs": 4}, window=4096, n_blocks=2048)
        sock = send(server, body, path)
        wait_for(lambda: gauges(server)[2] > 0)
        yield server, sock
    else:
        server = live(step_s=STEP_S)
        sock = send(server, body, path)
        wait_for(lambda: _generated(server) > 1)
        yield server, sock


def _generated(server: Server) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    return float(text.split('vllm:generation_tokens_total{model_name="fake"} ')[1].split("\n")[0])


@pytest.mark.parametrize("how", ["closed", "reset"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_a_client_that_leaves_frees_its_blocks_within_a_second(
    live: Callable[..., Server], phase: str, stream: bool, how: str
) -> None:
    content = "x" * (2000 if phase == "prefill" else 20)
    body = {"messages": [{"role": "user", "content": content}], "stream": stream, "max_tokens": 100}
    with in_phase(live, phase, body, "/v1/chat/completions") as (server, sock):
        before = _generated(server)
        if stream:
            read_until(sock, b"data: ")
        if phase == "prefill":
            assert before == 0
        hang_up(sock, how)
        if phase == "queue":
            assert wait_for(lambda: gauges(server)[1] == 0) < 1
            assert gauges(server)[0] == 1, "the other request goes on"
        else:
            assert wait_for(lambda: gauges(server) == (0, 0, 0)) < 1
        assert 'vllm_requests_total{model_name="fake",status="aborted"} 1.0' in httpx.get(f"{server.url}/metrics").text


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_leaving_ends_every_prompt_and_choice_of_a_request(live: Callable[..., Server], stream: bool) -> None:
    server = live(step_s=STEP_S)
    sock = send(server, {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 100, "stream": stream}, "/v1/completions")
    wait_for(lambda: gauges(server)[0] == 6)
    sock.close()
    assert wait_for(lambda: gauges(server) == (0, 0, 0)) < 1


def test_leaving_before_the_body_is_whole_queues_nothing(live: Callable[..., Server]) -> None:
    server = live()
    host, port = server.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    sock.sendall(head.encode() + b'{"messages"')
    sock.close()
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert gauges(server) == (0, 0, 0)


@pytest.mark.parametrize("path, body", [("/v1/chat/completions", LONG), ("/v1/completions", {"prompt": "x"})])
def test_headers_and_first_bytes_come_at_once(live: Callable[..., Server], path: str, body: dict[str, Any]) -> None:
    server = live(step_s=1.0)
    sock = send(server, {**body, "stream": True, "max_tokens": 1}, path)
    began = time.monotonic()
    received = read_until(sock, b"data: " if "chat" in path else b": keep-alive\n\n")
    assert time.monotonic() - began < 0.8
    assert b"text/event-stream" in received
    sock.close()


@pytest.mark.parametrize("path, body", [("/v1/chat/completions", LONG), ("/v1/completions", {"prompt": "x"})])
def test_a_stream_that_wakes_the_model_opens_at_once(
    live: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    monkeypatch.setattr("app.models.host._WATCH_S", 0.02)
    monkeypatch.setattr("app.sse.SILENCE_S", 0.1)
    server = live()
    load = server.host._load
    go = threading.Event()
    fails = False

    async def load_slowly(progress: Any) -> Any:
        while not go.is_set():
            await asyncio.sleep(0.01)
        if fails:
            raise ModelLoadError("The disk is away.")
        return await load(progress)

    server.host._load = load_slowly
    server.host._idle_timeout_s = 0.05
    wait_for(lambda: server.host.state == "unloaded")
    sock = send(server, {**body, "stream": True, "max_tokens": 2}, path)
    read_until(sock, b": keep-alive\n\n")
    read_until(sock, b": keep-alive\n\n")
    assert server.host.state == "loading"
    go.set()
    assert b'"finish_reason":"length"' in read_until(sock, b"[DONE]")
    sock.close()
    fails = True
    wait_for(lambda: server.host.state == "unloaded")
    failed = httpx.post(f"{server.url}{path}", json={**body, "stream": True}, timeout=10)
    assert failed.status_code == 200 and '"code":"model_failed"' in failed.text and "disk is away" in failed.text


def test_silence_is_broken_by_comments(live: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.sse.SILENCE_S", 0.05)
    server = live(step_s=0.4)
    response = httpx.post(f"{server.url}/v1/chat/completions", json={**LONG, "stream": True, "max_tokens": 2}, timeout=10)
    assert response.text.count(": keep-alive\n\n") >= 4
    assert events(response.text)[-1]["choices"][0]["finish_reason"] == "length"


def test_a_client_that_stops_reading_holds_up_nobody(live: Callable[..., Server]) -> None:
    server = live(window=20_000, n_blocks=8192, step_s=0.001)  # without, thousands of steps a second take the event loop's time
    sock = send(server, {**LONG, "stream": True})
    read_until(sock, b"data: ")
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={**LONG, "max_tokens": 3}, timeout=10)
    assert answer.status_code == 200
    sock.close()
    assert wait_for(lambda: gauges(server) == (0, 0, 0)) < 1


def test_sixteen_streams_with_one_beginning_run_together_and_share_it(live: Callable[..., Server]) -> None:
    server = live(step_s=STEP_S, window=512, n_blocks=1024)
    system = {"role": "system", "content": "s" * 200}

    def one(number: int) -> list[Any]:
        messages = [system, {"role": "user", "content": f"Question {number}"}]
        body = {"messages": messages, "stream": True, "max_tokens": 40, "stream_options": {"include_usage": True}}
        return events(httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).text)

    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(one, number) for number in range(16)]
        wait_for(lambda: gauges(server)[0] == 16, 30)
        answers = [future.result() for future in running]
    cached = sorted(answer[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
    assert all(answer[-2]["choices"][0]["finish_reason"] == "length" for answer in answers)
    assert cached[0] == 0 and all(n >= 200 for n in cached[1:])
    assert gauges(server) == (0, 0, 0)


def test_the_server_stops_while_streams_run(live: Callable[..., Server]) -> None:
    server = live(step_s=STEP_S)
    sock = send(server, {**LONG, "stream": True})
    read_until(sock, b"data: ")
