"""Two real servers on one machine, one for prompts and one for answers: the text of one alone, whatever becomes of the other."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import LiveServer, serve

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is handed over on Windows")
Start = Callable[..., AbstractContextManager[LiveServer]]


def prompt(topic: str, n_lines: int = 90) -> str:
    return " ".join(f"Line {i} about {topic} says to keep {i * 7919 % 1000} things in mind." for i in range(n_lines))


def ask(server: LiveServer, text: str, **options: Any) -> dict[str, Any]:
    body = {"model": server.model, "prompt": text, "max_tokens": 8, "temperature": 0, **options}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).raise_for_status().json()


def text_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["text"]


def n_cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def is_handed_over(answer: dict[str, Any]) -> bool:
    return answer["usage"]["prompt_tokens"] > 1200 and n_cached(answer) >= answer["usage"]["prompt_tokens"] - 32


def outcomes(decode: LiveServer) -> dict[str, int]:
    samples = decode.metrics().items()
    return {k.split('outcome="')[1][:-2]: int(v) for k, v in samples if k.startswith("pagewell_remote_prefills_total")}


@pytest.fixture
def start(tmp_path: Path, memory: Path) -> Start:
    """start(role, *options): a server of this role; they share the memory, and one home for data, as a person's do."""

    def start(role: str, *options: str) -> AbstractContextManager[LiveServer]:
        return serve(tmp_path, "--role", role, "--kv-shared-folder", str(memory), "--kv-disk-space", "0", *options)

    return start


def wait(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.005)


def sockets(memory: Path) -> list[Path]:
    return list(memory.glob("*/*/*.sock"))


def test_the_text_is_that_of_one_process_in_both_orders_of_start_and_nothing_is_left(
    start: Start, server: LiveServer, memory: Path
) -> None:
    with start("decode") as decode:
        first = ask(decode, prompt("tea"))
        assert text_of(first) == text_of(ask(server, prompt("tea"))) and n_cached(first) == 0
        with start("prefill") as prefill:
            wait(lambda: sockets(memory), "the prefill server listens")
            answer = ask(decode, prompt("coffee"))
            assert text_of(answer) == text_of(ask(server, prompt("coffee"))) and is_handed_over(answer)
            n_prompt = answer["usage"]["prompt_tokens"]

            def computed() -> int:
                return prefill.stats()["totals"]["prompt_tokens"]

            wait(lambda: computed() == n_prompt, "the prefill server has computed the prompt")
            chat = {
                "messages": [{"role": "user", "content": prompt("water")}],
                "max_tokens": 8,
                "temperature": 0,
                "stream": False,
            }
            told = [httpx.post(f"{s.url}/v1/chat/completions", json=chat, timeout=120).json() for s in (decode, server)]
            assert told[0]["choices"] == told[1]["choices"] and is_handed_over(told[0])
            salted = ask(decode, prompt("coffee"), cache_salt="mine")
            assert text_of(salted) == text_of(answer) and is_handed_over(salted)
            n_all = 2 * n_prompt + told[0]["usage"]["prompt_tokens"]
            wait(lambda: computed() == n_all, "the prefill server has computed all prompts, none of them twice")
            assert httpx.get(prefill.url).status_code == 404, "chats belong to the decode server"
        assert outcomes(decode) == {"absent": 1, "done": 3}
        said = [line for line in decode.log if "pagewell serve --role prefill" in line]
        assert len(said) == 1
    assert list(memory.iterdir()) == []
    with start("prefill"):
        wait(lambda: sockets(memory), "the prefill server listens")
        with start("decode") as decode:
            assert is_handed_over(ask(decode, prompt("tea"))) and outcomes(decode) == {"done": 1}
            decode.wait_idle()
    server.wait_idle()


def test_a_prefill_server_killed_in_mid_prompt_again_and_again_changes_no_text_and_its_successor_is_used(
    start: Start, server: LiveServer, memory: Path
) -> None:
    with start("decode", "--kv-lease", "2") as decode, ThreadPoolExecutor() as pool:
        for i, end in enumerate(("kill", "kill", "terminate", "kill")):
            with start("prefill", "--kv-lease", "2") as prefill:
                wait(lambda: sockets(memory), "the prefill server listens")
                topic = f"end {i}"
                asking = pool.submit(ask, decode, prompt(topic))
                wait(lambda prefill=prefill: prefill.metric("vllm:num_requests_running"), "the prompt is being computed")
                wait(lambda: list(memory.glob("*/*/*.kv")), "blocks are handed over")
                getattr(prefill.process, end)()
                answer = asking.result(120)
                assert text_of(answer) == text_of(ask(server, prompt(topic)))
                assert not is_handed_over(answer), "it had computed all of it before"
        assert outcomes(decode) == {"failed": 4}
        with start("prefill", "--kv-lease", "2"):
            wait(lambda: len(sockets(memory)) > 0, "the prefill server listens")
            assert is_handed_over(ask(decode, prompt("after all")))
        decode.wait_idle()
        wait(lambda: not list(memory.glob("*/*/*.kv")), "the lease of what the dead handed over ends")
    assert list(memory.iterdir()) == []
    server.wait_idle()


def test_a_prefill_server_that_hangs_is_not_waited_for(start: Start, server: LiveServer, memory: Path) -> None:
    with start("prefill") as prefill, start("decode") as decode:
        wait(lambda: sockets(memory), "the prefill server listens")
        prefill.process.send_signal(signal.SIGSTOP)
        try:
            answer = ask(decode, prompt("patience"))
            assert text_of(answer) == text_of(ask(server, prompt("patience"))) and n_cached(answer) == 0
            assert n_cached(ask(decode, prompt("more patience"))) < 200
            assert outcomes(decode) == {"failed": 1, "absent": 1}
        finally:
            prefill.process.send_signal(signal.SIGCONT)
    server.wait_idle()


def test_a_decode_server_killed_while_it_waits_frees_the_prefill_server(start: Start, memory: Path) -> None:
    with start("prefill", "--kv-lease", "1") as prefill:
        wait(lambda: sockets(memory), "the prefill server listens")
        for i in range(3):
            with start("decode") as decode, ThreadPoolExecutor() as pool:
                asking = pool.submit(ask, decode, prompt(f"the end {i}", 200))
                wait(lambda: prefill.metric("vllm:num_requests_running"), "the prompt is being computed")
                wait(lambda: list(memory.glob("*/*/*.kv")), "blocks are handed over")
                decode.process.kill()
                assert isinstance(asking.exception(60), httpx.TransportError)
            prefill.wait_idle()
            wait(lambda: not list(memory.glob("*/*/*.kv")), "the lease of what nobody took ends")
        assert prefill.metric("vllm_requests_total", status="aborted") == 3
    assert list(memory.iterdir()) == []
