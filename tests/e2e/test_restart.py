"""What a server computed is known after its end, also after one that nobody had time for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import LiveServer, serve

PROMPT = " ".join(f"Line {i} of the agent's instructions says to keep {i * 7919 % 1000} things in mind." for i in range(80))


def ask(server: LiveServer) -> dict[str, Any]:
    body = {"model": server.model, "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).raise_for_status().json()


def wait_stored(server: LiveServer, home: Path, n_blocks: int) -> None:
    """Until so many blocks are in files that are whole."""
    model = server.stats()["model"]
    block_bytes = model["kv_bytes"] // server.stats()["totals"]["n_blocks"]
    deadline = time.monotonic() + 30
    while sum(path.stat().st_size for path in (home / "cache" / "kv").glob("*/*.kv")) < n_blocks * block_bytes:
        assert time.monotonic() < deadline, "the prefix was not stored"
        time.sleep(0.05)


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_a_prompt_from_before_a_restart_is_known_and_gives_the_same_text(end: str, tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        cold = ask(server)
        n_prompt = cold["usage"]["prompt_tokens"]
        assert n_prompt > 1024 and cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        if end == "kill":
            wait_stored(server, tmp_path, n_prompt // 16)
        getattr(server.process, end)()
        server.process.wait(30)
    with serve(tmp_path) as server:
        known = ask(server)
        assert known["usage"]["prompt_tokens_details"]["cached_tokens"] >= n_prompt - 32
        assert known["choices"][0]["text"] == cold["choices"][0]["text"]
        assert server.metric("pagewell_fetched_blocks_total") >= n_prompt // 16 - 1
        cached = known["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert server.metric("pagewell_prefix_cache_hits_total", tier="disk") == cached
        moved = [server.metric("pagewell_kv_moved_bytes_total", way=way) for way in ("disk_to_host", "host_to_device")]
        assert moved[0] == moved[1] > 0 and server.metric("pagewell_kv_damaged_total") == 0
        assert server.metric("pagewell_kv_blocks", state="disk") >= n_prompt // 16
        assert server.metric("pagewell_kv_disk_limit_bytes") > server.metric("pagewell_kv_disk_bytes") > moved[0]
        server.wait_idle()


def test_without_disk_space_nothing_is_kept(tmp_path: Path) -> None:
    with serve(tmp_path, "--kv-disk-space", "0") as server:
        ask(server)
    assert not list(tmp_path.glob("cache/kv/*/*"))
