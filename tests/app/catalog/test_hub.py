"""Pulling: by the real client from a hub on this machine, with all that can go wrong on the way."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.catalog import access, disk, hub, library, pulling
from engine.errors import ModelLoadError
from tests.app.catalog.hub_server import SHA, TOKEN, HubServer, Repo, model_file, model_parts
from tests.engine.weights.gguf_writer import entry, typed

ROOT = Path(__file__).parents[3]
DENSE = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": bytes(range(256)) * 400, "evil.py": b"boom"}
Hub = Callable[..., HubServer]


@pytest.fixture(autouse=True)
def known_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring takes half a second, and busy machines give anything."""
    monkeypatch.setattr("app.catalog.pulling.read_bytes_s", lambda: 20e9)


def ggufs(*quants: str) -> Repo:
    return Repo({f"m-{quant}.gguf": model_file() for quant in quants})


def pagewell(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command as a person runs it, against the hub of HF_ENDPOINT."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "app.cli", "models", *args]
    return subprocess.run(command, env=env, input=stdin, capture_output=True, text=True, timeout=120, check=False)


def test_a_pull_shows_the_choices_takes_the_best_and_fetches_nothing_else(hub_of: Hub, pagewell_home: Path) -> None:
    server = hub_of(o__r=Repo(ggufs("Q4_0", "Q8_0", "Q1_0").files | {"evil.py": b"boom"}))
    result = pagewell("pull", "o/r")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["QUANT", "SIZE", "BITS", "QUALITY", "SPEED", "WINDOW"]
    (chosen,) = [line for line in lines if "*" in line]
    assert "Q8_0" in chosen and "as good as 16 bits" in chosen and "64 tokens" in chosen
    assert any("Q1_0" in line and "not loaded yet" in line for line in lines)
    folder = pagewell_home / "cache" / "models" / "o--r"
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["m-Q8_0.gguf"]
    assert (folder / "m-Q8_0.gguf").read_bytes() == server.repos["o/r"].files["m-Q8_0.gguf"]
    assert not any("evil.py" in line for line in server.asked) and library.find("o/r:q8_0").path.parent == folder


def test_a_quantisation_that_is_named_is_taken(hub_of: Hub) -> None:
    hub_of(o__r=ggufs("Q4_0", "Q8_0"))
    assert pulling.pull("o/r:q4_0").path.name == "m-Q4_0.gguf"
    with pytest.raises(ModelLoadError, match="has no Q5_K_M"):
        pulling.pull("o/r:Q5_K_M")


def test_a_person_chooses(hub_of: Hub) -> None:
    hub_of(o__r=ggufs("Q4_0", "Q8_0"))
    model = pulling.pull("o/r", lambda rows, best: next(row for row in rows if row is not best))
    assert model.name == "o/r:Q4_0"
    with pytest.raises(ModelLoadError, match="Nothing was chosen"):
        pulling.pull("o/r", lambda rows, best: None)


def test_nothing_that_does_not_fit_is_taken_unasked(hub_of: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server = hub_of(o__r=ggufs("Q4_0"))
    monkeypatch.setattr("engine.runner.memory.free_bytes", lambda _: 1 << 10)
    with pytest.raises(ModelLoadError, match="Nothing of o/r fits into memory here"):
        pulling.pull("o/r")
    assert not any(line.startswith("HEAD") for line in server.asked)
    assert pulling.pull("o/r:Q4_0").path.exists(), "it was named"


@pytest.mark.parametrize("kind", ["architecture", "tokenizer", "tensor", "no GGUF", "damaged header"])
def test_what_cannot_be_run_is_refused_before_it_is_downloaded(hub_of: Hub, kind: str) -> None:
    parts = model_parts()
    said = {
        "architecture": "rwkv6",
        "tokenizer": "sentencetuple",
        "tensor": "NVFP4",
        "no GGUF": "not a GGUF file",
        "damaged header": "number 200",
    }[kind]
    if kind == "architecture":
        parts.entries[0] = entry("general.architecture", typed("str", "rwkv6"))
    if kind == "tokenizer":
        parts.entries[-2] = entry("tokenizer.ggml.model", typed("str", "sentencetuple"))
    data = parts.bytes()
    if kind in ("tensor", "damaged header"):
        at = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
        data = data[:at] + bytes([40 if kind == "tensor" else 200]) + data[at + 1 :]
    if kind == "no GGUF":
        data = b"PK" + data[2:]
    server = hub_of(o__r=Repo({"m-Q4_0.gguf": data + bytes(8 << 20)}))
    with pytest.raises(ModelLoadError, match=f"(?s)o/r:Q4_0 cannot be loaded, so it is not downloaded.*{said}"):
        pulling.pull("o/r")
    assert all("bytes=0-1048575" in line for line in server.asked if "resolve" in line), "more than the header was fetched"
    assert not hub.folder_of("o/r").exists()


def test_a_header_of_many_megabytes_is_fetched_as_far_as_it_goes(hub_of: Hub) -> None:
    parts = model_parts(rope_factors=True)
    parts.entries.insert(0, entry("general.description", typed("str", "x" * (5 << 20))))
    parts.data += bytes(30 << 20)
    server = hub_of(o__r=Repo({"m-Q4_0.gguf": parts.bytes()}))
    offered = pulling.offer("o/r", None)
    assert offered.facts.config.max_position == 64
    ranges = [line.split()[-1] for line in server.asked if "resolve" in line]
    assert ranges == ["bytes=0-1048575", "bytes=1048576-4194303", "bytes=4194304-12582911"]


def test_a_hub_that_knows_no_ranges_is_understood(hub_of: Hub) -> None:
    hub_of(o__r=ggufs("Q4_0")).knows_ranges = False
    assert pulling.offer("o/r", None).facts.config.family == "llama"


def test_dense_models_are_judged_by_their_configuration(hub_of: Hub) -> None:
    server = hub_of(o__r=Repo(DENSE | {"config.json": b'{"model_type": "rwkv6"}'}))
    with pytest.raises(ModelLoadError, match="models of type rwkv6 are not supported"):
        pulling.pull("o/r")
    assert not server.n_sent("model.safetensors")


def downloaded(server: HubServer, name: str = "o/r") -> Path:
    """A whole download without a look at what it is."""
    repository = hub.look_up(name)
    (choice,) = pulling.choices.choices(name, repository.sizes)
    return hub.download(repository, choice).path


def test_a_download_that_breaks_off_goes_on_where_it_was(hub_of: Hub) -> None:
    weights = bytes(range(256)) * (24 << 12)  # huggingface_hub writes 10 MiB at a time
    server = hub_of(o__r=Repo(DENSE | {"model.safetensors": weights}))
    server.cut_after["model.safetensors"] = 15 << 20
    path = downloaded(server)
    assert (path / "model.safetensors").read_bytes() == weights
    assert any(line.startswith("GET") and f"bytes={10 << 20}-" in line for line in server.asked)
    assert not (path / disk.INCOMPLETE).exists() and not (path / "evil.py").exists()


@pytest.mark.parametrize("wrong", ["bytes", "more"])
def test_what_arrives_damaged_is_told_and_removed(hub_of: Hub, wrong: str) -> None:
    data = model_file()
    repo = Repo({"m-Q4_0.gguf": data})
    server = hub_of(o__r=repo)
    repo.sent["m-Q4_0.gguf"] = data[:-1] + b"!" if wrong == "bytes" else data + b"!"
    with pytest.raises(ModelLoadError, match="m-Q4_0.gguf.*damaged|Consistency check"):
        pulling.pull("o/r")
    assert not (hub.folder_of("o/r") / "m-Q4_0.gguf").exists() and disk.installed() == []
    repo.sent.clear()
    assert pulling.pull("o/r").path.read_bytes() == data and server.n_sent("m-Q4_0.gguf") >= 2


def test_a_file_that_was_damaged_on_disk_since_is_noticed_by_the_next_pull(hub_of: Hub) -> None:
    hub_of(o__r=ggufs("Q4_0"))
    path = pulling.pull("o/r").path
    kept = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    with pytest.raises(ModelLoadError, match="its SHA-256 is"):
        pulling.pull("o/r")
    assert pulling.pull("o/r").path.read_bytes() == model_file()


def test_progress_is_reported_and_what_it_raises_stops_the_download(hub_of: Hub) -> None:
    hub_of(o__r=Repo(DENSE | {"config.json": b"{}", "model.safetensors": bytes(3 << 20)}))
    repository = hub.look_up("o/r")
    (choice,) = pulling.choices.choices("o/r", repository.sizes)
    seen: list[tuple[int, int]] = []

    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done > 100:
            raise Stop

    with pytest.raises(Stop):
        hub.download(repository, choice, stop)
    assert disk.installed() == [], "half a model is none"
    seen.clear()
    hub.download(repository, choice, lambda *at: seen.append(at))
    assert seen == sorted(seen) and seen[-1] == (choice.n_bytes, choice.n_bytes)
    assert [model.name for model in disk.installed()] == ["o/r"]


def test_parts_are_downloaded_together(hub_of: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"Q4_0/m-Q4_0-0000{n}-of-00002.gguf": bytes([n]) * 1000 for n in (1, 2)}
    path = downloaded(hub_of(o__r=Repo(files)))
    assert path.name == "m-Q4_0-00001-of-00002.gguf" and [part.stat().st_size for part in disk.parts(path)] == [1000, 1000]
    (model,) = disk.installed()
    assert (model.name, model.n_bytes) == ("o/r:Q4_0", 2000)
    assert disk.remove(model) == 2000 and not any(part.exists() for part in disk.parts(path))


def test_what_is_there_already_needs_no_room(hub_of: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server = hub_of(o__r=Repo(DENSE))
    n_weights = len(DENSE["model.safetensors"])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=n_weights // 2))
    with pytest.raises(ModelLoadError, match=r"needs 100KiB more, but .* has 50KiB left"):
        downloaded(server)
    parts = hub.folder_of("o/r") / ".cache" / "huggingface" / "download"
    parts.mkdir(parents=True)
    (parts / "hash.etag.4f2a9c1b.incomplete").write_bytes(bytes(n_weights))
    with pytest.raises(ModelLoadError, match="needs 100KiB more"):
        downloaded(server)
    (parts / "hash.etag.incomplete").write_bytes(bytes(n_weights // 2 + 10))
    assert downloaded(server).exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert downloaded(server).exists()


def test_an_unknown_repository_and_a_silent_hub_are_told_apart(hub_of: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_of()
    unknown = pagewell("pull", "owner/none")
    assert unknown.returncode == 2 and "The hub has no model owner/none" in unknown.stderr
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    silent = pagewell("pull", "owner/tiny")
    assert silent.returncode == 2 and "could not be reached" in silent.stderr
    assert "Traceback" not in unknown.stderr + silent.stderr


def test_a_token_opens_what_is_gated_and_is_for_nobody_elses_eyes(hub_of: Hub, caplog: pytest.LogCaptureFixture) -> None:
    server = hub_of(o__r=Repo(ggufs("Q4_0").files, gated=True))
    with pytest.raises(ModelLoadError, match="gated"):
        pulling.pull("o/r")
    with pytest.raises(access.TokenRefused, match="does not know this token"):
        access.log_in("hf_wrong")
    assert not access.token_path().exists()
    assert access.log_in(f" {TOKEN}\n") == "ada"
    assert access.token_path().read_text() == TOKEN
    assert stat.S_IMODE(access.token_path().stat().st_mode) == 0o600
    assert pulling.pull("o/r").path.exists() and TOKEN in server.tokens
    assert TOKEN not in caplog.text
    access.token_path().chmod(0o644)
    hub.look_up("o/r")
    assert stat.S_IMODE(access.token_path().stat().st_mode) == 0o600 and "could be read by others" in caplog.text
    assert access.log_out() and not access.log_out()


def test_logging_in_from_a_pipe_prints_no_token(hub_of: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_of()
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "kept"))
    result = pagewell("login", stdin=TOKEN + "\n")
    assert result.returncode == 0, result.stderr
    assert "knows you as ada" in result.stdout and TOKEN not in result.stdout + result.stderr
    assert (tmp_path / "kept").read_text() == TOKEN


def test_one_revision_is_taken_whole(hub_of: Hub) -> None:
    server = hub_of(o__r=Repo(DENSE))
    downloaded(server)
    assert all(f"/resolve/{SHA}/" in line for line in server.asked if "resolve" in line)
