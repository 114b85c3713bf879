"""The hub: which files of a repository make a model, and their download by the real client from a hub on this machine."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.catalog import hub
from engine.errors import ModelLoadError

ROOT = Path(__file__).parents[3]
SHA = "0123456789012345678901234567890123456789"


def sizes(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 100)


def test_hub_ids() -> None:
    assert hub.parse_id("Qwen/Qwen3-0.6B-GGUF") == ("Qwen/Qwen3-0.6B-GGUF", None)
    assert hub.parse_id("Qwen/Qwen3-0.6B-GGUF:q8_0") == ("Qwen/Qwen3-0.6B-GGUF", "q8_0")
    assert hub.parse_id("qwen3-0.6b") is None
    assert hub.parse_id("a/b/c") is None
    assert hub.parse_id("../etc/passwd") is None


def test_the_best_quantisation_is_chosen_unless_one_is_named() -> None:
    files = sizes("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-IQ2_XS.gguf", "README.md")
    assert hub.choose("o/r", None, files).files == ("m-Q4_K_M.gguf",)
    assert hub.choose("o/r", "q8_0", files).files == ("m-Q8_0.gguf",)


@pytest.mark.parametrize("projector", ["mmproj-m-F16.gguf", "m-mmproj-F16.gguf", "MMPROJ-F16.gguf"])
def test_a_vision_projector_is_never_taken_for_the_model(projector: str) -> None:
    files = sizes("A-F16.gguf", projector, "Z-Q8_0.gguf")
    assert hub.choose("o/r", "F16", files).files == ("A-F16.gguf",)


def test_dense_repositories_give_what_the_loader_needs_and_nothing_that_runs() -> None:
    files = sizes("config.json", "tokenizer.json", "model.safetensors", "modeling_x.py", "pytorch_model.bin", "onnx/model.onnx")
    choice = hub.choose("o/r", None, files)
    assert set(choice.files) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert choice.n_bytes == 300


@pytest.mark.parametrize(
    ("files", "quant", "said"),
    [
        (sizes("m-Q8_0.gguf"), "Q4_0", "has no Q4_0.*\n?.*It has Q8_0"),
        (sizes("m-Q1_0.gguf", "m-Q4_0_4_4.gguf"), None, "does not load: Q1_0, Q4_0_4_4"),
        (sizes("m-Q1_0.gguf"), "Q1_0", "does not load: Q1_0"),
        (sizes("m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"), None, "neither a whole GGUF"),
        (sizes("a-Q4_0.gguf", "b-Q4_0.gguf"), None, "2 files of Q4_0: a-Q4_0.gguf, b-Q4_0.gguf"),
        (sizes("mmproj-m-F16.gguf"), None, "neither a whole GGUF"),
        (sizes("config.json", "model.safetensors"), None, "no tokenizer.json"),
        (sizes("pytorch_model.bin", "config.json"), None, "neither a whole GGUF"),
    ],
)
def test_what_cannot_be_loaded_is_refused_before_the_download(files: dict[str, int], quant: str | None, said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        hub.choose("o/r", quant, files)


class FakeHub(http.server.ThreadingHTTPServer):
    """The few answers of a hub that a download needs."""

    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": bytes(range(256)) * 400, "evil.py": b"boom"}

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[str] = []
        self.cut_after: int | None = None
        """Break the connection after so many bytes of the weights."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(http.server.BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Tests print nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.server.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if path == "/api/models/owner/tiny":
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FakeHub.files.items()]
            self._send(200, json.dumps({"id": "owner/tiny", "sha": SHA, "siblings": siblings}).encode())
        elif path.startswith(f"/owner/tiny/resolve/{SHA}/"):
            self._send_file(path.rsplit("/", 1)[1])
        else:
            self._send(404, b"{}", ("X-Error-Code", "RepoNotFound"))

    def _send_file(self, name: str) -> None:
        data = FakeHub.files[name]
        headers = [("ETag", f'"{hashlib.sha1(data).hexdigest()}"'), ("X-Repo-Commit", SHA), ("Accept-Ranges", "bytes")]
        asked = self.headers.get("Range")
        if asked:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            self._send(206, data[start:], *headers, ("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}"))
        elif name.endswith(".safetensors") and self.command == "GET" and self.server.cut_after:
            cut, self.server.cut_after = self.server.cut_after, None
            self._send(200, data, *headers, n_bytes=cut)
        else:
            self._send(200, data, *headers)

    def _send(self, status: int, body: bytes, *headers: tuple[str, str], n_bytes: int | None = None) -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body))), ("Content-Type", "application/json")):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:n_bytes])
            if n_bytes is not None:
                self.close_connection = True


@pytest.fixture
def fake_hub() -> Iterator[FakeHub]:
    with FakeHub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def pull(name: str, url: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "HF_ENDPOINT": url, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "app.cli", "models", "pull", name]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_pull_brings_the_files_of_one_revision(fake_hub: FakeHub, pagewell_home: Path) -> None:
    result = pull("owner/tiny", fake_hub.url)
    assert result.returncode == 0, result.stderr
    folder = pagewell_home / "cache" / "models" / "owner--tiny"
    assert {p.name for p in folder.iterdir() if p.is_file()} == {"config.json", "tokenizer.json", "model.safetensors"}
    assert (folder / "model.safetensors").read_bytes() == FakeHub.files["model.safetensors"]
    assert not any("evil.py" in line for line in fake_hub.asked)


def test_a_download_that_breaks_off_goes_on(fake_hub: FakeHub, pagewell_home: Path) -> None:
    fake_hub.cut_after = 50_000
    result = pull("owner/tiny", fake_hub.url)
    assert result.returncode == 0, result.stderr
    folder = pagewell_home / "cache" / "models" / "owner--tiny"
    assert (folder / "model.safetensors").read_bytes() == FakeHub.files["model.safetensors"]
    assert sum(line.startswith("GET") and "model.safetensors" in line for line in fake_hub.asked) == 2


def store(path: Path) -> None:
    path.write_bytes(FakeHub.files[path.name])


def test_what_is_there_already_needs_no_room(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", fake_hub.url)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda _, name, revision, local_dir: store(local_dir / name))
    n_weights = len(FakeHub.files["model.safetensors"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=n_weights // 2))
    with pytest.raises(ModelLoadError, match=r"needs 100KiB more, but .* has 50KiB left"):
        hub.pull("owner/tiny", None)
    parts = hub.folder_of("owner/tiny") / ".cache" / "huggingface" / "download"
    parts.mkdir(parents=True)
    (parts / "hash.etag.4f2a9c1b.incomplete").write_bytes(bytes(n_weights))
    with pytest.raises(ModelLoadError, match="needs 100KiB more"):
        hub.pull("owner/tiny", None)
    (parts / "hash.etag.incomplete").write_bytes(bytes(n_weights // 2 + 10))
    assert hub.pull("owner/tiny", None).n_bytes == n_weights
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert hub.pull("owner/tiny", None).n_bytes == n_weights


def test_an_unknown_repository_and_a_silent_hub_are_told_apart(fake_hub: FakeHub) -> None:
    unknown = pull("owner/none", fake_hub.url)
    assert unknown.returncode == 2 and "The hub has no model owner/none" in unknown.stderr
    silent = pull("owner/tiny", "http://127.0.0.1:9")
    assert silent.returncode == 2 and "could not be reached" in silent.stderr
    assert "Traceback" not in unknown.stderr + silent.stderr
