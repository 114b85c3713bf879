"""Where Pagewell keeps things on disk. PAGEWELL_HOME puts everything under one folder (tests, portable installs)."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import PlatformDirs

_DIRS = PlatformDirs("pagewell", appauthor=False)


def _folder(kind: str, default: Path) -> Path:
    home = os.environ.get("PAGEWELL_HOME")
    folder = Path(home).expanduser() / kind if home else default
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def data_dir() -> Path:
    """Chats and everything else that must not be lost. Other users of the machine may not look into it."""
    folder = _folder("data", _DIRS.user_data_path)
    if os.name == "posix":
        folder.chmod(0o700)
    return folder


def cache_dir() -> Path:
    """What can be downloaded or built again."""
    return _folder("cache", _DIRS.user_cache_path)


def config_dir() -> Path:
    """The person's own serving_config.toml."""
    return _folder("config", _DIRS.user_config_path)


def database_path() -> Path:
    """The SQLite file with conversations."""
    return data_dir() / "pagewell.db"


def models_dir() -> Path:
    """Downloaded models, one folder for each."""
    folder = cache_dir() / "models"
    folder.mkdir(exist_ok=True)
    return folder
