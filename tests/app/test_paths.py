"""Folders on disk: everything under PAGEWELL_HOME, and chats for their owner only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app import paths


@pytest.mark.skipif(os.name != "posix", reason="folders of a person are closed to others on Windows anyway")
def test_other_users_cannot_look_into_the_chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWELL_HOME", str(tmp_path))
    (tmp_path / "data").mkdir(mode=0o755)  # as an earlier version left it
    assert stat.S_IMODE(paths.database_path().parent.stat().st_mode) == 0o700
