"""Where Pagewell keeps things on disk. PAGEWELL_HOME puts everything under one folder (tests, portable installs)."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import PlatformDirs

from engine.errors import PagewellError


class FolderUnusable(PagewellError):
    """A folder of Pagewell's cannot be made or written."""


_DIRS = PlatformDirs("pagewell", appauthor=False)


def _folder(kind: str, default: Path) -> Path:
    home = os.environ.get("PAGEWELL_HOME")
    return Path(home).expanduser() / kind if home else default


def cache_dir() -> Path:
    """What can be downloaded or built again."""
    return _folder("cache", _DIRS.user_cache_path)


def config_dir() -> Path:
    """The person's own serving_config.toml."""
    return _folder("config", _DIRS.user_config_path)


def database_path() -> Path:
    """The SQLite file with conversations: what must not be lost."""
    return _folder("data", _DIRS.user_data_path) / "pagewell.db"


def models_dir() -> Path:
    """Downloaded models, one folder for each."""
    return cache_dir() / "models"


def create(folder: Path, *, private: bool = False) -> None:
    """Make the folder and those above it; nobody else may look into a private one. Raises FolderUnusable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if private and os.name == "posix":
            folder.chmod(0o700)
    except OSError as error:
        raise FolderUnusable(
            f"The folder {folder} cannot be used: {error.strerror or error}.",
            "Make it writable, or set PAGEWELL_HOME to a folder that is.",
        ) from error
