"""A hub on this machine, which huggingface_hub takes for the real one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.app.catalog.hub_server import HubServer, Repo


@pytest.fixture
def hub_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., HubServer]]:
    """Starts a hub: `hub_of(owner__name=Repo(...))`. The token lies in a folder of the test."""
    started: list[tuple[HubServer, threading.Thread]] = []

    def start(**repos: Repo) -> HubServer:
        server = HubServer(**repos)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        started.append((server, thread))
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        server.server_close()
        thread.join()
