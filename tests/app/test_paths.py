"""Folders on disk: everything under PAGEWELL_HOME, and chats for their owner only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app import paths
from app.catalog import disk


@pytest.mark.skipif(os.name != "posix", reason="folders of a person are closed to others on Windows anyway")
def test_other_users_cannot_look_into_the_chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWELL_HOME", str(tmp_path))
    (tmp_path / "data").mkdir(mode=0o755)  # as an earlier version left it
    paths.create(paths.database_path().parent, private=True)
    assert stat.S_IMODE(paths.database_path().parent.stat().st_mode) == 0o700


def test_looking_at_folders_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWELL_HOME", str(tmp_path / "home"))
    assert disk.installed() == [] and not paths.config_dir().exists() and not paths.database_path().parent.exists()
    assert not (tmp_path / "home").exists()


def test_a_folder_that_cannot_be_made_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(paths.FolderUnusable, match="file/home") as refused:
        paths.create(tmp_path / "file" / "home")
    assert "PAGEWELL_HOME" in refused.value.hint
