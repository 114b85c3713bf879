"""/api/models, /api/pulls and the Models view over real files, a real hub on this machine, and a model that is only a header."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from litestar import Litestar

from app import paths, settings
from app.catalog import disk, library
from app.catalog.disk import LocalModel
from app.errors import UnknownModel, respond
from app.models.host import ModelHost
from app.models.memory import Memory
from app.models.plugin import ModelsPlugin
from app.models.pool import ModelPool
from engine.config import EngineConfig
from engine.errors import ModelLoadError
from tests import models
from tests.app.catalog.conftest import hub_of
from tests.app.catalog.hub_server import Repo, model_file
from tests.app.models.fakes import Loads

__all__ = ["hub_of"]

Start = Callable[..., Any]


class Site:
    """An application with nothing but models, over the test's own folder."""

    def __init__(self, main: LocalModel | None = None, **values: Any) -> None:
        self.loads: dict[str, Loads] = {}
        main = main or LocalModel("main-model", models.smollm2(), "gguf", 98_362_432, False)
        self.pool = ModelPool(self.make(main), find=library.local, make=self.make)
        config = values.pop("config", None)
        made = settings.load(config=config, environ={}) if config else settings.make(values)
        self.app = Litestar(plugins=[ModelsPlugin(made, self.pool)], exception_handlers={Exception: respond}, logging_config=None)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://127.0.0.1:8000", timeout=30)

    def make(self, model: LocalModel) -> ModelHost:
        load = self.loads[model.name] = Loads(1000)
        load.go.set()
        return ModelHost(load, name=model.name, model=model)

    async def state(self, name: str) -> str:
        return next(m["state"] for m in (await self.models()) if m["name"] == name)

    async def models(self) -> list[dict[str, Any]]:
        return (await self.client.get("/api/models")).json()["models"]

    async def post(self, path: str, model: str) -> httpx.Response:
        return await self.client.post(path, json={"model": model})


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr("app.catalog.pulling.read_bytes_s", lambda: 20e9)
    monkeypatch.setattr("app.models.pool.FRESH_S", 0.0)
    site = Site()
    await site.pool.start()
    yield site
    await site.client.aclose()
    await site.pool.close()


def put(name: str, data: bytes | None = None) -> Path:
    path = paths.models_dir() / name / f"{name}.gguf"
    paths.create(path.parent)
    path.write_bytes(model_file() if data is None else data)
    return path


async def events(site: Site, response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_models_on_disk_are_listed_loaded_and_unloaded(site: Site) -> None:
    path = put("tiny")
    listed = {m["name"]: m for m in await site.models()}
    assert set(listed) == {"main-model", "tiny"} and listed["main-model"]["is_main"]
    tiny = listed["tiny"]
    assert (tiny["state"], tiny["path"], tiny["origin"], tiny["is_deletable"]) == ("unloaded", str(path), "Pagewell", True)
    assert (await site.post("/api/models/load", "tiny")).status_code == 202
    while await site.state("tiny") != "ready":
        await asyncio.sleep(0.01)
    host = site.pool.get("tiny")
    async with host.use():
        busy = await site.post("/api/models/unload", "tiny")
        assert busy.status_code == 409 and busy.json()["error"]["code"] == "model_in_use"
    assert (await site.post("/api/models/unload", "tiny")).json()["state"] == "unloaded"
    assert (await site.post("/api/models/load", "tinny")).status_code == 404


async def test_show_tells_what_a_model_is_and_what_fits(site: Site) -> None:
    facts = (await site.client.get("/api/models/main-model")).json()
    assert (facts["family"], facts["chat_template"], facts["fits_here"]) == ("llama", "yes", True)
    assert facts["kv_bytes_per_token"]["float16"] == 2 * 30 * 3 * 64 * 2 and facts["window_here"] > 16
    put("broken", b"GGUF")
    assert (await site.client.get("/api/models/broken")).status_code == 400


def filled(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The main model has all of the device's memory."""
    engine = site.pool.main.current
    assert engine is not None
    engine.info.weights_bytes = 8 << 30
    monkeypatch.setattr("engine.runner.memory.free_bytes", lambda _: 1024)
    site.pool.room._memory = Memory(SimpleNamespace(type="cuda"))


async def loaded(site: Site) -> None:
    while site.pool.main.state != "ready":
        await asyncio.sleep(0.01)


async def test_what_fits_is_judged_by_what_loaded_models_would_leave(
    site: Site, hub_of: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own memory is no reason against a loaded model, and others leave for one that needs theirs."""
    await loaded(site)
    filled(site, monkeypatch)
    put("tiny")
    for name, window in (("main-model", 8192), ("tiny", 64)):
        facts = (await site.client.get(f"/api/models/{name}")).json()
        assert (facts["fits_here"], facts["window_here"]) == (True, window)
    hub_of(o__r=Repo({"m-Q8_0.gguf": model_file()}))
    (row,) = (await site.post("/api/models/offer", "o/r")).json()["rows"]
    assert (row["window"], row["is_best"]) == (64, True)
    assert (await events(site, await site.post("/api/models/pull", "o/r")))[-1]["state"] == "done"


async def test_what_fits_is_judged_by_the_settings_in_force(
    hub_of: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("app.catalog.pulling.read_bytes_s", lambda: 20e9)
    hub_of(**{name: Repo({"m-Q8_0.gguf": model_file()}) for name in ("o__r", "o__narrow", "o__quant")})
    (tmp_path / "own.toml").write_text(
        '[serving]\nmax_model_len = 4096\n[models."o/narrow"]\nmax_model_len = 32\n[models."o/quant:Q8_0"]\nmax_model_len = 48\n'
    )
    site = Site(config=tmp_path / "own.toml")
    for name, window in (("o/r", 64), ("o/narrow", 32), ("o/quant", 48)):
        (row,) = (await site.post("/api/models/offer", name)).json()["rows"]
        assert (row["window"], row["why_not"]) == (window, ""), name
    put("tiny")
    host = await site.pool.find("tiny")
    host.config = EngineConfig(max_model_len=4096)
    facts = (await site.client.get("/api/models/tiny")).json()
    assert (facts["fits_here"], facts["window_here"]) == (True, 64), "as a load has it"
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "models", "pull", "o/narrow", "--config", str(tmp_path / "own.toml")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "32 tokens" in done.stdout


async def test_only_what_is_pagewells_and_out_of_memory_is_deleted(site: Site) -> None:
    path = put("tiny")
    n_bytes = path.stat().st_size
    foreign = await site.client.delete("/api/models/main-model")
    assert foreign.status_code == 400 and "not Pagewell's to delete" in foreign.json()["error"]["message"]
    assert models.smollm2().exists()
    await site.post("/api/models/load", "tiny")
    while await site.state("tiny") != "ready":
        await asyncio.sleep(0.01)
    assert (await site.client.delete("/api/models/tiny")).status_code == 409 and path.exists()
    await site.post("/api/models/unload", "tiny")
    assert (await site.client.delete("/api/models/tiny")).json() == {"model": "tiny", "freed_bytes": n_bytes}
    assert not path.exists() and {m["name"] for m in await site.models()} == {"main-model"}


async def test_who_asks_for_a_model_while_it_is_deleted_is_refused_and_it_leaves_the_list(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put("tiny")
    await site.models()
    host = site.pool.get("tiny")
    real, may_go, begun = disk.remove, threading.Event(), threading.Event()

    def slow(model: LocalModel) -> int:
        begun.set()
        may_go.wait(10)
        return real(model)

    monkeypatch.setattr(disk, "remove", slow)
    deleting = asyncio.create_task(site.client.delete("/api/models/tiny"))
    await asyncio.to_thread(begun.wait, 10)
    assert (await site.post("/api/models/load", "tiny")).status_code == 404
    with pytest.raises(UnknownModel, match="is being deleted"):
        async with host.use():
            pass
    assert (await site.client.delete("/api/models/tiny")).status_code == 409
    may_go.set()
    assert (await deleting).status_code == 200 and not path.exists()
    assert site.loads["tiny"].n_begun == 0 and {m["name"] for m in await site.models()} == {"main-model"}


async def test_after_a_deletion_that_fails_the_model_can_be_loaded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    put("tiny")

    def refuse(model: LocalModel) -> int:
        raise ModelLoadError("It could not be deleted whole.")

    monkeypatch.setattr(disk, "remove", refuse)
    assert (await site.client.delete("/api/models/tiny")).status_code == 400
    assert (await site.post("/api/models/load", "tiny")).status_code == 202


async def test_the_main_model_is_not_deleted_though_it_is_unloaded() -> None:
    path = put("tiny")
    site = Site(main=disk.open_path(path))
    await site.pool.start()
    await asyncio.sleep(0.01)
    assert (await site.post("/api/models/unload", "tiny")).json()["is_deletable"] is False
    refused = await site.client.delete("/api/models/tiny")
    assert refused.status_code == 409 and "was started with" in refused.json()["error"]["message"] and path.exists()
    await site.pool.close()


async def test_a_pull_tells_how_far_it_is_and_the_model_can_be_asked_for_then(site: Site, hub_of: Start) -> None:
    hub_of(o__r=Repo({f"m-{quant}.gguf": model_file() for quant in ("Q4_0", "Q8_0")}))
    offer = (await site.post("/api/models/offer", "o/r")).json()
    assert [(row["quant"], row["is_best"]) for row in offer["rows"]] == [("Q4_0", False), ("Q8_0", True)]
    seen = await events(site, await site.post("/api/models/pull", "o/r:Q8_0"))
    assert seen[-1]["state"] == "done" and seen[-1]["done_bytes"] == seen[-1]["total_bytes"] == len(model_file())
    assert (await site.pool.find(seen[-1]["model"])).name == "o/r"
    assert (await site.client.get("/api/pulls")).json()["pulls"][0]["state"] == "done"


async def test_a_pull_that_cannot_be_says_why(site: Site, hub_of: Start) -> None:
    hub_of()
    seen = await events(site, await site.post("/api/models/pull", "o/none"))
    assert seen[-1]["state"] == "failed" and "The hub has no model o/none" in seen[-1]["error"]
    assert (await site.post("/api/models/offer", "o/none")).status_code == 400
    assert (await site.post("/api/models/offer", "../etc")).status_code == 400


@pytest.mark.parametrize("mode", ["readonly", "key"])
async def test_actions_ask_for_permission(mode: str) -> None:
    site = Site(permission_mode=mode, **({"api_key": "k"} if mode == "key" else {}))
    path = put("tiny")
    for action in ("load", "unload", "pull", "offer"):
        assert (await site.post(f"/api/models/{action}", "tiny")).status_code in (401, 403)
        form = await site.client.post(f"/ui/models/{action}", data={"model": "tiny"}, headers={"HX-Request": "true"})
        assert form.status_code in (401, 403)
    assert (await site.client.delete("/api/models/tiny")).status_code in (401, 403)
    assert (await site.client.post("/ui/models/remove", data={"model": "tiny"})).status_code in (401, 403)
    assert (await site.client.delete("/api/pulls/1")).status_code in (401, 403)
    assert path.exists() and (await site.client.get("/api/models")).status_code == 200
    if mode == "key":
        site.client.headers["authorization"] = "Bearer k"
        assert (await site.client.delete("/api/models/tiny")).status_code == 200


async def test_the_view_shows_each_model_and_escapes_what_strangers_named(site: Site) -> None:
    put("tiny"), put("<img src=x onerror=alert(1)>")
    page = (await site.client.get("/catalogue")).text
    assert "<img src=x" not in page and "&lt;img src=x" in page and ">tiny" in page
    assert "script-src" not in page and (await site.client.get("/catalogue")).headers["content-security-policy"]
    site.loads["tiny"].error = RuntimeError("no <b>room</b>")
    await site.client.post("/ui/models/load", data={"model": "tiny"}, headers={"HX-Request": "true"})
    while await site.state("tiny") != "failed":
        await asyncio.sleep(0.01)
    part = (await site.client.get("/ui/models")).text
    assert "could not be loaded" in part and "no &lt;b&gt;room" in part
    gone = await site.client.post("/ui/models/load", data={"model": "nowhere"}, headers={"HX-Request": "true"})
    assert gone.status_code == 404 and gone.text.startswith("The model `nowhere` does not exist here.")


def test_the_setting_names_all_that_it_governs() -> None:
    words = settings.BY_NAME["permission_mode"].description
    assert all(word in words for word in ("end others' requests", " load", "unload", "download", "delete", "pin"))


class Buttons(HTMLParser):
    """What assistive programs call the buttons and bars of a page; a button's name begins with what it shows."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self._shown: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("button", "progress"):
            self.names.append(dict(attrs).get("aria-label") or "")
            self._shown = "" if tag == "button" else None

    def handle_data(self, data: str) -> None:
        if self._shown is not None:
            self._shown += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "button":
            assert self._shown and self.names[-1].startswith(f"{self._shown} ")
            self._shown = None


async def test_each_button_says_what_it_is_for(site: Site, hub_of: Start) -> None:
    server = hub_of(**{f"o__r{n}": Repo({f"m-{q}.gguf": model_file() for q in ("Q4_0", "Q8_0")}) for n in range(2)})
    put("tiny"), put('a"b <c>')
    offer = Buttons((await site.client.post("/ui/models/offer", data={"model": "o/r1"})).text).names
    assert offer == ["Download o/r1:Q4_0", "Download o/r1:Q8_0"]
    server.is_silent = "/api/"
    for n in range(2):
        await site.client.post("/ui/models/pull", data={"model": f"o/r{n}"})
    names = Buttons((await site.client.get("/ui/models")).text).names
    assert len(names) == len(set(names)) and {"Stop o/r0", "Load tiny", "Delete tiny", 'Delete a"b <c>'} < set(names)
    for pull in (await site.client.get("/api/pulls")).json()["pulls"]:
        await site.client.delete(f"/api/pulls/{pull['id']}")


async def test_the_view_downloads(site: Site, hub_of: Start) -> None:
    hub_of(o__r=Repo({f"m-{quant}.gguf": model_file() for quant in ("Q8_0", "Q1_0")}))
    offer = (await site.client.post("/ui/models/offer", data={"model": " o/r "})).text
    assert "best here" in offer and offer.count(">Download<") == 1 and "not loaded yet" in offer
    assert (await site.client.post("/ui/models/pull", data={"model": "o/r:Q8_0"})).text == ""
    part = ""
    while "is here" not in part:
        part = (await site.client.get("/ui/models")).text
        await asyncio.sleep(0.02)
    assert "o/r" in part
