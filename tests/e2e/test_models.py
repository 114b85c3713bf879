"""Several names of the real model on a real server: swaps, memory that comes back, settings of single models, the Models view."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, expect

from tests import models
from tests.e2e.server import LiveServer, serve
from tests.e2e.test_chat_page import SLOW_MS, browser

__all__ = ["browser"]

KV = 64 << 20
LONG = "a-very-long-name-of-a-model-that-somebody-merged-from-many-others-and-then-quantised-again"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """The bundled model under three names, one of them of another program, with settings of its own for one."""
    home = tmp_path_factory.mktemp("several")
    for path in (
        home / "cache" / "models" / "second" / "second-Q4_1.gguf",
        home / "cache" / "models" / LONG / "x-Q4_1.gguf",
        home / ".lmstudio" / "models" / "ada" / "third-GGUF" / "third-Q4_1.gguf",
        home / "cache" / "models" / "broken" / "broken.gguf",
    ):
        path.parent.mkdir(parents=True)
        if path.stem == "broken":
            path.write_bytes(b"GGUF, but no more")
        else:
            path.symlink_to(models.smollm2())
    config = home / "serving_config.toml"
    config.write_text(
        f'[serving]\nmax_model_len = 1024\nkv_cache_memory = {KV}\nswap_space = "16MiB"\nkv_disk_space = 0\n'
        '[orchestrator]\nmodel_aliases = ["fast=second"]\n[models.second]\nmax_model_len = 512\nkv_cache_dtype = "int8"\n'
    )
    # Through a copy: links to one file are one model.
    for folder in ("second", LONG):
        link = next((home / "cache" / "models" / folder).iterdir())
        link.unlink()
        link.write_bytes(models.smollm2().read_bytes())
    with serve(home, "--config", str(config)) as server:
        yield server


def ask(server: LiveServer, model: str, **fields: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0} | fields
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120).raise_for_status().json()


def states(server: LiveServer) -> dict[str, str]:
    return {m["id"]: m["state"] for m in httpx.get(f"{server.url}/v1/models", timeout=30).json()["data"]}


def unload(server: LiveServer, model: str) -> None:
    httpx.post(f"{server.url}/api/models/unload", json={"model": model}, timeout=60).raise_for_status()


def test_the_same_weights_answer_alike_under_each_name(several: LiveServer) -> None:
    texts = {name: ask(several, name)["choices"][0]["message"]["content"] for name in ("smollm2", "fast", LONG)}
    assert len(set(texts.values())) <= 2 and all(texts.values())  # one of them has a narrower cache
    assert texts["smollm2"] == texts[LONG]
    entries = {m["id"]: m for m in httpx.get(f"{several.url}/v1/models", timeout=30).json()["data"]}
    assert entries["smollm2"]["max_model_len"] == 1024 and entries["fast"]["max_model_len"] == 512
    assert ask(several, "second")["model"] == "fast"
    loaded = {m["name"]: m for m in httpx.get(f"{several.url}/api/models", timeout=30).json()["models"]}
    assert loaded["fast"]["settings"]["kv_cache_dtype"] == "int8" and loaded["fast"]["settings"]["max_model_len"] == 512


def test_a_damaged_model_is_a_clear_error_and_harms_nobody(several: LiveServer) -> None:
    body = {"model": "broken", "messages": [{"role": "user", "content": "hi"}]}
    answer = httpx.post(f"{several.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 503 and "The model broken could not be loaded" in answer.json()["error"]["message"]
    assert ask(several, "smollm2")["choices"]


def test_memory_comes_back_when_a_model_is_unloaded(several: LiveServer) -> None:
    process = psutil.Process(several.process.pid)

    def rss() -> int:
        return process.memory_info().rss

    ask(several, "fast")
    ask(several, LONG)
    for name in ("fast", LONG):
        unload(several, name)
    time.sleep(0.5)
    before = rss()
    held = []
    for _ in range(3):
        ask(several, LONG)
        held.append(rss() - before)
        unload(several, LONG)
        time.sleep(0.5)
    left = rss() - before
    weights = 98 << 20
    assert min(held) > weights, f"a loaded model takes its weights: {held}"
    assert left < weights // 3, f"{left / 2**20:.0f} MiB of {[h >> 20 for h in held]} MiB stayed after three loads"


def test_the_models_view_loads_and_unloads(several: LiveServer, browser: Browser, tmp_path: Path) -> None:
    unload(several, LONG)
    page = browser.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.goto(f"{several.url}/catalogue")
    row = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name=LONG))
    row.get_by_role("button", name=f"Load {LONG}", exact=True).click()
    expect(row.get_by_text("in memory")).to_be_visible(timeout=SLOW_MS)
    for width, scheme in ((1200, "light"), (1200, "dark"), (380, "light"), (380, "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.screenshot(path=tmp_path / f"models-{width}-{scheme}.png", full_page=True)
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), f"it scrolls sideways at {width}"
        assert row.bounding_box()["width"] > min(width, 960) * 0.85, "the list takes the room that there is"
    row.get_by_role("button", name=f"Unload {LONG}").click()
    expect(row.get_by_text("on disk")).to_be_visible(timeout=SLOW_MS)
    row.get_by_role("button", name=f"Delete {LONG}").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"Delete {LONG}?")
    page.get_by_role("button", name="Keep").click()
    expect(row).to_be_visible()
    assert not problems
    page.close()


@pytest.mark.parametrize("begun", ["typed", "suggested"])
def test_a_chat_is_answered_by_the_model_that_was_chosen(
    several: LiveServer, browser: Browser, tmp_path: Path, begun: str
) -> None:
    page = browser.new_page()
    page.goto(several.url)
    page.get_by_label("Model that answers").select_option(LONG)
    if begun == "typed":
        page.get_by_label("Message", exact=True).fill("Say hello.")
        page.keyboard.press("Enter")
    else:
        page.get_by_role("button", name="Write a short poem").click()
    answer = page.locator("article.assistant")
    expect(answer.get_by_role("heading", name=LONG)).to_be_attached(timeout=SLOW_MS)
    expect(answer).to_have_attribute("data-state", "done", timeout=2 * SLOW_MS)
    expect(page.get_by_label("Model that answers")).to_have_value(LONG)
    for width in (1200, 380):
        page.set_viewport_size({"width": width, "height": 800})
        page.screenshot(path=tmp_path / f"chat-{width}.png")
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), f"it scrolls sideways at {width}"
    page.close()
