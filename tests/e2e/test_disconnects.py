"""Clients of a real server that hang up: nothing of theirs is left in memory a second later."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.server import LiveServer, serve


@pytest.fixture(scope="module")
def small_steps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """An abort takes effect between two steps, and slow operators make long ones: 32 tokens at a time keep them short."""
    options = ("--max-model-len", "2048", "--max-num-batched-tokens", "32", "--max-num-seqs", "1")
    with serve(tmp_path_factory.mktemp("home"), *options) as server:
        yield server


def send(server: LiveServer, words: int, *, stream: bool) -> socket.socket:
    messages = [{"role": "user", "content": "word " * words}]
    content = json.dumps({"messages": messages, "stream": stream, "max_tokens": 300, "ignore_eos": True}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    sock = socket.create_connection((host, int(port)))
    sock.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return sock


def wait(server: LiveServer, wanted: Any) -> None:
    deadline = time.monotonic() + 30
    while not wanted(server.metric):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_nothing_is_left_a_second_after_a_client_hung_up(small_steps: LiveServer, phase: str, stream: bool) -> None:
    produced = small_steps.metric("vllm:generation_tokens_total")
    sockets = [send(small_steps, 1500 if phase == "prefill" else 3, stream=stream)]
    if phase == "decode":
        wait(small_steps, lambda metric: metric("vllm:generation_tokens_total") > produced + 1)
    else:
        wait(small_steps, lambda metric: metric("pagewell_kv_blocks", state="used") > 3 or phase == "queue")
    if phase == "queue":
        sockets.append(send(small_steps, 3, stream=stream))
        wait(small_steps, lambda metric: metric("vllm:num_requests_waiting") == 1)
        sockets.pop().close()
        began = time.monotonic()
        wait(small_steps, lambda metric: metric("vllm:num_requests_waiting") == 0)
        assert time.monotonic() - began < 1
    if phase == "prefill":
        assert small_steps.metric("vllm:generation_tokens_total") == produced
    sockets.pop().close()
    began = time.monotonic()
    small_steps.wait_idle()
    assert time.monotonic() - began < 1
    assert small_steps.blocks_in_use() == 0
