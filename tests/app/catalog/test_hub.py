"""Pulling: by the real client from a hub on this machine, with all that can go wrong on the way."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.catalog import access, disk, hub, library, pulling
from app.catalog.choices import Choice
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
    assert not hub.folder_of("o/r").exists() and server.n_bytes_sent <= len(model_file())
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


class Stop(Exception):
    """What a test's check raises."""


def wire_ends(when: Callable[[], bool]) -> Callable[[], None]:
    """A check that ends the work then."""

    def check() -> None:
        if when():
            raise Stop

    return check


def chosen(name: str = "o/r") -> tuple[hub.Repository, Choice]:
    repository = hub.look_up(name)
    (choice,) = pulling.choices.choices(name, repository.sizes)
    return repository, choice


def downloaded(server: HubServer, name: str = "o/r") -> Path:
    """A whole download without a look at what it is."""
    return hub.download(*chosen(name)).path


def test_a_download_that_breaks_off_goes_on_where_it_was(hub_of: Hub) -> None:
    weights = bytes(range(256)) * (24 << 12)
    server = hub_of(o__r=Repo(DENSE | {"model.safetensors": weights}))
    server.cut_after["model.safetensors"] = 15 << 20
    path = downloaded(server)
    assert (path / "model.safetensors").read_bytes() == weights
    first, second = server.ranges_of("model.safetensors")
    assert first.startswith("0-") and second.startswith(f"{15 << 20}-")
    assert not (path / disk.PARTS).exists() and not (path / "evil.py").exists()


@pytest.mark.parametrize("wrong", ["bytes", "more"])
def test_what_arrives_damaged_is_told_and_removed(hub_of: Hub, wrong: str) -> None:
    data = model_file()
    repo = Repo({"m-Q4_0.gguf": data})
    server = hub_of(o__r=repo)
    repo.sent["m-Q4_0.gguf"] = data[:-1] + b"!" if wrong == "bytes" else data + b"!"
    with pytest.raises(ModelLoadError, match="m-Q4_0.gguf.* damaged"):
        pulling.pull("o/r")
    assert not (hub.folder_of("o/r") / "m-Q4_0.gguf").exists() and disk.installed() == []
    repo.sent.clear()
    assert pulling.pull("o/r").path.read_bytes() == data and server.n_sent("m-Q4_0.gguf") >= 2


def test_a_file_that_was_damaged_on_disk_since_is_replaced_by_the_next_pull(hub_of: Hub) -> None:
    server = hub_of(o__r=ggufs("Q4_0"))
    path = pulling.pull("o/r").path
    kept = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert pulling.pull("o/r").path.read_bytes() == model_file()
    n_asked = len(server.ranges_of("m-Q4_0.gguf"))
    pulling.pull("o/r")
    assert len(server.ranges_of("m-Q4_0.gguf")) == n_asked + 1, "the header alone"


def test_a_download_goes_on_in_another_process_where_one_was_killed(hub_of: Hub) -> None:
    weights = random.Random(0).randbytes(9 << 20)
    repo = Repo({"m-Q4_0.gguf": model_file() + weights})
    server = hub_of(o__r=repo)
    server.silent_after["m-Q4_0.gguf"] = there = 5 << 20
    command = [sys.executable, "-m", "app.cli", "models", "pull", "o/r"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    try:
        while sum(part.stat().st_size for part in hub.folder_of("o/r").glob(f"{disk.PARTS}/*.part")) < there:
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    assert disk.installed() == []
    server.silent_after.clear(), server.asked.clear()
    assert pulling.pull("o/r").path.read_bytes() == repo.files["m-Q4_0.gguf"]
    assert server.ranges_of("m-Q4_0.gguf")[-1] == f"{there}-{len(repo.files['m-Q4_0.gguf']) - 1}"


def test_files_of_two_revisions_are_never_mixed(hub_of: Hub) -> None:
    """Neither parts of one file, nor files of the same size that have no SHA-256 at the hub."""
    old, new = (DENSE | {"config.json": b'{"a":%d}' % n, "model.safetensors": bytes([n]) * 500_000} for n in (1, 2))
    server = hub_of(o__r=Repo(dict(old)))
    path = downloaded(server)
    server.repos["o/r"].files.update(new)
    server.silent_after["model.safetensors"] = 100_000
    ended = wire_ends(lambda: server.n_bytes_sent > 700_000)
    with pytest.raises(Stop):
        hub.download(*chosen(), lambda *_: None, ended)
    assert all((path / name).read_bytes() == old[name] for name in ("config.json", "model.safetensors")), "the old one is whole"
    server.silent_after.clear()
    newest = DENSE | {"config.json": b'{"a":3}', "model.safetensors": b"3" * 500_000}
    server.repos["o/r"].files.update(newest)
    assert downloaded(server) == path
    assert all((path / name).read_bytes() == newest[name] for name in ("config.json", "model.safetensors"))
    assert not (path / disk.PARTS).exists()


@pytest.mark.parametrize("files", [{"m-Q8_0.gguf": model_file() * 300}, DENSE])
def test_a_model_is_offered_only_once_it_is_whole_and_checked(hub_of: Hub, files: dict[str, bytes]) -> None:
    hub_of(o__r=Repo(files))
    seen: list[tuple[int, int]] = []
    at: list[int] = []

    def look() -> None:
        seen.append((at[-1] if at else 0, len(disk.installed())))

    repository, choice = chosen()
    hub.download(repository, choice, lambda done, *_: at.append(done), look)
    assert {n_models for _, n_models in seen} == {0} and len(disk.installed()) == 1
    assert seen[-1][0] == choice.n_bytes, "nobody looked while the sums were compared"


def test_downloads_into_one_folder_do_not_disturb_each_other(hub_of: Hub) -> None:
    repo = ggufs("Q4_0", "Q8_0")
    repo.files = {name: data + bytes(3 << 20) for name, data in repo.files.items()}
    server = hub_of(o__r=repo)
    with ThreadPoolExecutor(4) as threads:
        names = ("o/r:Q4_0", "o/r:Q8_0", "o/r:q8_0", "o/r")
        found = list(threads.map(lambda name: pulling.pull(name, None, lambda *_: None).path, names))
    assert {path.read_bytes() == repo.files[path.name] for path in found} == {True}
    assert sum(each.startswith("0-") and each != "0-1048575" for each in server.ranges_of("m-Q8_0.gguf")) == 1
    assert not (hub.folder_of("o/r") / disk.PARTS).exists()


@pytest.mark.parametrize("name", ["../m-Q4_0.gguf", "/tmp/m-Q4_0.gguf", "a/../../m-Q4_0.gguf", "a\\..\\m-Q4_0.gguf"])
def test_a_file_that_would_lie_elsewhere_is_refused(name: str) -> None:
    repository = hub.Repository("o/r", SHA, {name: 1}, {})
    with pytest.raises(ModelLoadError, match="leads elsewhere"):
        hub.download(repository, Choice("o/r", (name,), 1, "Q4_0"))


def test_progress_is_reported_and_what_it_raises_stops_the_download(hub_of: Hub) -> None:
    hub_of(o__r=Repo(DENSE | {"config.json": b"{}", "model.safetensors": bytes(3 << 20)}))
    repository = hub.look_up("o/r")
    (choice,) = pulling.choices.choices("o/r", repository.sizes)
    seen: list[tuple[int, int]] = []

    def stop(done: int, total: int, fetched: int) -> None:
        seen.append((done, total))
        if done > 100:
            raise Stop

    with pytest.raises(Stop):
        hub.download(repository, choice, stop)
    assert disk.installed() == [], "half a model is none"
    seen.clear()
    hub.download(repository, choice, lambda done, total, _: seen.append((done, total)))
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
    (name,) = [name for name in chosen()[1].files if name.endswith(".safetensors")]
    sha256 = hub.look_up("o/r").sha256[name]
    parts = hub.folder_of("o/r") / disk.PARTS
    (parts / f"{name}.{'0' * 16}.part").write_bytes(bytes(n_weights))
    with pytest.raises(ModelLoadError, match="needs 100KiB more"):
        downloaded(server)
    (parts / f"{name}.{sha256[:16]}.part").write_bytes(DENSE[name][: n_weights // 2 + 10])
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
