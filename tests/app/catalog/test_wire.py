"""Requests to the hub: no wait without an end, and none that cannot be left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.catalog import hub, pulling, wire
from engine.errors import ModelLoadError
from tests.app.catalog.hub_server import HubServer, Repo, model_file
from tests.app.catalog.test_hub import Hub, Stop, chosen, wire_ends

NAME = "m-Q4_0.gguf"
DATA = model_file() + bytes(range(256)) * (12 << 12)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_REST_S", 0.0)
    monkeypatch.setattr("app.catalog.pulling.read_bytes_s", lambda: 20e9)


@pytest.fixture
def server(hub_of: Hub) -> HubServer:
    return hub_of(o__r=Repo({NAME: DATA}))


def download() -> bytes:
    return hub.download(*chosen(), lambda *_: None).path.read_bytes()


def test_a_server_without_ranges_is_read_no_further_than_is_wanted(server: HubServer) -> None:
    server.knows_ranges = False
    repository, _ = chosen()
    assert hub.fetch(repository, NAME, 1000, 5000) == DATA[1000:6000]
    assert server.n_bytes_sent < len(DATA), "the connection was not closed"
    server.cut_after[NAME] = 7 << 20
    assert download() == DATA


def test_a_long_file_comes_in_several_ranges(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "RANGE_BYTES", 5 << 20)
    assert download() == DATA
    assert [each.split("-")[0] for each in server.ranges_of(NAME)] == [str(n * (5 << 20)) for n in range(3)]


def test_what_passes_is_tried_again_and_what_does_not_is_told(server: HubServer) -> None:
    server.status[NAME] = [503, 429, 500]
    assert download() == DATA
    server.repos["o/r"].files[NAME] = DATA[::-1]
    server.status[NAME] = [404, 503]
    with pytest.raises(ModelLoadError):
        download()
    assert server.status[NAME] == [503]


def test_a_download_that_brings_nothing_more_ends_and_keeps_what_it_has(server: HubServer, monkeypatch: Any) -> None:
    server.status[NAME] = [503] * 100
    with pytest.raises(ModelLoadError, match="could not be reached"):
        download()
    assert len(server.status[NAME]) == 100 - wire.MOST_TRIES
    del server.status[NAME]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    server.silent_after[NAME] = 5 << 20  # of each request: two thirds of the rest, and the end
    server.asked.clear()
    assert download() == DATA
    assert [each.split("-")[0] for each in server.ranges_of(NAME)] == ["0", str(5 << 20), str(10 << 20)]


@pytest.mark.parametrize("where", ["/api/", "/resolve/", "body"])
def test_a_hub_that_falls_silent_is_not_waited_for_for_ever(server: HubServer, where: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    server.is_silent = where
    server.silent_after = {NAME: 100} if where == "body" else {}
    with pytest.raises(ModelLoadError, match="could not be reached"):
        pulling.pull("o/r")


@pytest.mark.parametrize("where", ["/api/", "/resolve/", "header", "body"])
def test_a_silent_hub_can_be_left_at_once(server: HubServer, where: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 3600)
    server.is_silent = where
    server.silent_after = {"header": {NAME: 100}, "body": {NAME: 2 << 20}}.get(where, {})
    ended: Callable[[], bool] = {
        "/api/": lambda: any("/api/" in line for line in server.asked),
        "/resolve/": lambda: bool(server.ranges_of(NAME)),
        "header": lambda: server.n_bytes_sent >= 100,
        "body": lambda: server.n_bytes_sent >= 3 << 20,
    }[where]
    with pytest.raises(Stop):
        pulling.pull("o/r", None, lambda *_: None, wire_ends(ended))


def test_the_check_of_sums_and_the_wait_for_another_download_can_be_left(server: HubServer) -> None:
    repository, choice = chosen()
    done: list[int] = []

    def tell(at: int, *_: int) -> None:
        done.append(at)

    with pytest.raises(Stop):
        hub.download(repository, choice, tell, wire_ends(lambda: bool(done) and done[-1] == len(DATA)))
    with hub._alone("o/r", wire.go_on), pytest.raises(Stop):
        hub.download(repository, choice, tell, wire_ends(lambda: True))
    server.asked.clear()
    assert download() == DATA and not server.ranges_of(NAME), "it was whole"


@pytest.mark.parametrize("said", ["", "bytes 1-9/10", "bytes 0-9", "pages 0-9/10"])
def test_other_bytes_than_those_asked_for_are_refused(said: str) -> None:
    with pytest.raises(ModelLoadError, match="from 0 on"):
        wire._total(said, 0, "http://hub/x")


def test_a_part_that_is_too_long_begins_anew(server: HubServer, tmp_path: Path) -> None:
    part = tmp_path / "x.part"
    part.write_bytes(bytes(len(DATA) + 1))
    wire.receive(hub._url(chosen()[0], NAME), part, len(DATA), lambda _: None, wire.go_on)
    assert part.read_bytes() == DATA
