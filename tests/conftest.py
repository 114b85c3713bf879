"""What every test shares: the --models option, and a home of its own on disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--models", action="store_true", help="fail, instead of skip, where one of the larger models is missing")


def pytest_configure(config: pytest.Config) -> None:
    models.REQUIRED = config.getoption("--models")


@pytest.fixture(autouse=True)
def pagewell_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing that a test writes reaches the person's own chats, settings or models, and none of their settings reach it."""
    home = tmp_path_factory.mktemp("home")
    models.folder()
    for name in [name for name in os.environ if name.startswith("PAGEWELL_") and name != "PAGEWELL_TEST_MODELS"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PAGEWELL_HOME", str(home))
    # Nor are models found that other programs of this person have.
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "ollama"))
    monkeypatch.setenv("HF_HOME", str(home / "hub"))
    monkeypatch.setattr("app.catalog.elsewhere.lm_studio_folders", lambda: [home / "lmstudio"])
    return home


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where there is one, with a short path: sockets may lie there, whose paths cannot be long."""
    folder = Path(tempfile.mkdtemp(prefix="pw", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    yield folder
    shutil.rmtree(folder)
