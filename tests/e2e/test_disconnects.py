"""Clients of a real server that hang up: nothing of theirs is left in memory a second later."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.server import LiveServer, serve


@pytest.fixture(scope="module")
def small_steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """An abort takes effect between two steps, and slow operators make long ones: 32 tokens at a time keep them short."""
    options = ("--max-model-len", "2048", "--max-num-batched-tokens", "32", "--max-num-seqs", "1")
    with serve(tmp_path_factory.mktemp("home"), *options) as server:
        yield server


@pytest.fixture
def send(small_steps: LiveServer) -> Iterator[Callable[..., socket.socket]]:
    """Sends a request of about so many tokens; what a test leaves open is closed after it."""
    sockets = []

    def start(words: int, *, stream: bool) -> socket.socket:
        messages = [{"role": "user", "content": "word " * words}]
        content = json.dumps({"messages": messages, "stream": stream, "max_tokens": 300, "ignore_eos": True}).encode()
        host, port = small_steps.url.removeprefix("http://").split(":")
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        sock = socket.create_connection((host, int(port)))
        sockets.append(sock)
        sock.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return sock

    small_steps.wait_idle(60)
    yield start
    for sock in sockets:
        sock.close()


def wait(server: LiveServer, wanted: Callable[[Callable[..., float]], bool]) -> float:
    """Seconds until the metrics are as wanted."""
    began = time.monotonic()
    while not wanted(server.metric):
        assert time.monotonic() - began < 60
        time.sleep(0.02)
    return time.monotonic() - began


def soon_s(server: LiveServer) -> float:
    """A second, and the step under way with the one that the question itself may wait for, on however slow a machine."""
    return 1 + 2 * server.metric("pagewell_step_seconds_total") / server.metric("pagewell_steps_total")


def idle(metric: Callable[..., float]) -> bool:
    return metric("vllm:num_requests_running") == metric("pagewell_kv_blocks", state="used") == 0


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_nothing_is_left_of_a_prefill_whose_client_hung_up(small_steps: LiveServer, send: Any, stream: bool) -> None:
    produced = small_steps.metric("vllm:generation_tokens_total")
    sock = send(1500, stream=stream)
    wait(small_steps, lambda metric: metric("pagewell_kv_blocks", state="used") > 3)
    sock.close()
    assert wait(small_steps, idle) < soon_s(small_steps)
    assert small_steps.metric("vllm:generation_tokens_total") == produced


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_nothing_is_left_of_a_decode_whose_client_hung_up(small_steps: LiveServer, send: Any, stream: bool) -> None:
    produced = small_steps.metric("vllm:generation_tokens_total")
    sock = send(3, stream=stream)
    wait(small_steps, lambda metric: metric("vllm:generation_tokens_total") > produced + 1)
    sock.close()
    assert wait(small_steps, idle) < soon_s(small_steps)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_hung_up_in_the_queue_gives_up_its_place(small_steps: LiveServer, send: Any, stream: bool) -> None:
    other = send(3, stream=stream)
    wait(small_steps, lambda metric: metric("vllm:num_requests_running") == 1)
    sock = send(3, stream=stream)
    wait(small_steps, lambda metric: metric("vllm:num_requests_waiting") == 1)
    sock.close()
    assert wait(small_steps, lambda metric: metric("vllm:num_requests_waiting") == 0) < soon_s(small_steps)
    assert small_steps.metric("vllm:num_requests_running") == 1, "the other request goes on"
    other.close()
    assert wait(small_steps, idle) < soon_s(small_steps)
