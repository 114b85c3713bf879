"""Models of other programs: found where those keep them, named with their origin, and left alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app import paths
from app.catalog import disk, elsewhere, library
from engine.errors import ModelLoadError
from engine.weights.loader import open_checkpoint
from tests import models
from tests.app.catalog.test_disk import put, safetensors_folder

_HOST = "registry.ollama.ai"


def ollama(
    folder: Path, name: str, blob: bytes | None, *, tag: str = "latest", host: str = "registry.ollama.ai", **kinds: str
) -> Path:
    """A model as Ollama has it; its blob's file. kinds: more layers, by media type's last word."""
    digest = f"{abs(hash((name, tag))):064x}"[:64]
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": len(blob or b"")}]
    layers += [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{d}"} for kind, d in kinds.items()]
    put(folder / "manifests" / host / Path(name) / tag)
    (folder / "manifests" / host / Path(name) / tag).write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    path = folder / "blobs" / f"sha256-{digest}"
    if blob is not None:
        put(path).write_bytes(blob)
    return path


def names() -> list[str]:
    return sorted(model.name for model in elsewhere.models())


def test_lm_studio_keeps_files_by_publisher_and_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    monkeypatch.setattr("app.catalog.elsewhere.lm_studio_folders", lambda: [new, old])
    put(new / "bartowski" / "Qwen-GGUF" / "Qwen-Q4_K_M.gguf"), put(new / "bartowski" / "Qwen-GGUF" / "Qwen-Q8_0.gguf")
    put(new / "bartowski" / "Qwen-GGUF" / "mmproj-Qwen-F16.gguf")
    put(old / "a" / "One-GGUF" / "one.gguf"), safetensors_folder(old / "mlx" / "dense")
    assert names() == [
        "lmstudio/a/One-GGUF", "lmstudio/bartowski/Qwen-GGUF:Q4_K_M", "lmstudio/bartowski/Qwen-GGUF:Q8_0", "lmstudio/mlx/dense",
    ]  # fmt: skip
    assert {model.origin for model in elsewhere.models()} == {"LM Studio"}


def test_where_lm_studio_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert elsewhere.lm_studio_folders() == [tmp_path / ".lmstudio" / "models", tmp_path / ".cache" / "lm-studio" / "models"]


def test_ollama_names_its_blobs_by_their_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    blob = ollama(folder, "library/llama3.2", b"GGUF1", tag="1b", template="0" * 64)
    ollama(folder, "ada/mine", b"GGUF22")
    ollama(folder, "team/x", b"GGUF333", host="registry.example.com")
    found = {model.name: model for model in elsewhere.models()}
    assert sorted(found) == ["ollama/ada/mine:latest", "ollama/llama3.2:1b", "ollama/registry.example.com/team/x:latest"]
    assert found["ollama/llama3.2:1b"].path == blob and found["ollama/llama3.2:1b"].n_bytes == 5
    assert library.find("LLAMA3.2:1b").path == blob and library.find("ollama/llama3.2:1b").origin == "Ollama"


def test_a_blob_of_ollama_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    blob = ollama(tmp_path, "library/smol", None)
    blob.parent.mkdir()
    blob.symlink_to(models.smollm2())
    assert open_checkpoint(library.find("ollama/smol:latest").path).config.family == "llama"


@pytest.mark.parametrize(
    "manifest",
    [
        *("", "{", "[]", '{"layers": 3}', '{"layers": [{"mediaType": 1}]}', '{"layers": []}', "\xff", '{"layers": [null]}'),
        pytest.param('{"layers": ' + "[" * 200_000, id="nested"),
    ],
)
def test_manifests_that_are_none_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifest: str) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    ollama(tmp_path, "library/good", b"GGUF")
    bad = put(tmp_path / "manifests" / "registry.ollama.ai" / "library" / "bad" / "latest")
    bad.write_bytes(manifest.encode("latin-1"))
    assert names() == ["ollama/good:latest"]


def test_a_program_whose_folder_cannot_be_read_takes_no_others_models_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    ollama(tmp_path / "ollama", "library/good", b"GGUF")
    put(tmp_path / "mine" / "own.gguf")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / ("x" * 300)))  # longer than names may be
    with pytest.raises(OSError):
        elsewhere.hub_cache().is_dir()
    assert {model.name for model in elsewhere.models([str(tmp_path / "mine")])} == {"ollama/good:latest", "own"}


def test_what_of_ollama_is_no_whole_model_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    ollama(tmp_path, "library/gone", None)  # its blob was deleted
    ollama(tmp_path, "library/tuned", b"GGUF", adapter="1" * 64)  # without its adapter it would be another model
    up = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "up" / "latest"
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../secret"}
    put(up).write_text(json.dumps({"layers": [layer]}))
    (tmp_path / "blobs" / "sha256-..").mkdir(parents=True)
    put(tmp_path / "blobs" / "secret")
    put(tmp_path / "secret")
    assert names() == []


def test_the_hubs_cache_gives_the_revision_that_was_fetched_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "models--Owner--Dense"
    for revision in ("old", "new"):
        put(safetensors_folder(repo / "snapshots" / revision) / "tokenizer.json")
    put(repo / "refs" / "main").write_text("old\n")
    blob = put(tmp_path / "models--o--g" / "blobs" / "abc")
    link = tmp_path / "models--o--g" / "snapshots" / "r" / "g-Q4_0.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    safetensors_folder(tmp_path / "models--o--half" / "snapshots" / "r")  # without a tokenizer
    put(tmp_path / "datasets--o--d" / "snapshots" / "r" / "x.gguf")
    found = {model.name: model for model in elsewhere.models()}
    assert sorted(found) == ["hf/Owner/Dense", "hf/o/g"] and found["hf/Owner/Dense"].path.name == "old"
    (repo / "refs" / "main").write_text("gone")
    os.utime(repo / "snapshots" / "old", (1, 1))
    assert {model.name: model for model in elsewhere.models()}["hf/Owner/Dense"].path.name == "new"


def test_where_the_hubs_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert elsewhere.hub_cache() == tmp_path / ".cache" / "huggingface" / "hub"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert elsewhere.hub_cache() == Path("/x/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/h")
    assert elsewhere.hub_cache() == Path("/h/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/c")
    assert elsewhere.hub_cache() == Path("/c")


def test_folders_of_the_settings_are_searched(tmp_path: Path) -> None:
    put(tmp_path / "loose-Q8_0.gguf"), put(tmp_path / "other.gguf"), put(tmp_path / "below" / "deep.gguf")
    put(tmp_path / "1" / "2" / "3" / "4" / "too-deep.gguf"), put(tmp_path / ".hidden" / "x.gguf")
    assert {m.name for m in elsewhere.models([str(tmp_path)])} == {"loose-Q8_0", "other", "below"}
    assert library.find("below", [str(tmp_path)]).origin == str(tmp_path)
    with pytest.raises(library.ModelNotFound):
        library.find("below")


def test_links_in_circles_and_folders_that_cannot_be_read_do_no_harm(tmp_path: Path) -> None:
    put(tmp_path / "good" / "a.gguf")
    (tmp_path / "good" / "round").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "lost.gguf").symlink_to(tmp_path / "nowhere.gguf")
    locked = put(tmp_path / "locked" / "b.gguf").parent
    locked.chmod(0)
    try:
        found = [m for m in library.local([str(tmp_path), str(tmp_path / "missing")])]
        assert "good" in {m.name for m in found} and len({m.path.resolve() for m in found}) == len(found)
    finally:
        locked.chmod(0o700)


def test_a_file_that_two_programs_share_is_listed_once_and_pagewells_own_name_wins(tmp_path: Path) -> None:
    own = put(tmp_path / "home" / "x.gguf")
    from app import paths

    paths.create(paths.models_dir())
    (paths.models_dir() / "mine.gguf").symlink_to(own)
    assert [model.name for model in library.local([str(own.parent)])] == ["mine"]


def test_what_belongs_to_others_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    blob = ollama(tmp_path, "library/m", b"GGUF")
    with pytest.raises(ModelLoadError, match="not Pagewell's to delete") as refused:
        disk.remove(library.find("ollama/m:latest"))
    assert refused.value.hint == "It belongs to Ollama: delete it there." and blob.exists()


def test_a_split_model_is_one_only_with_all_its_parts(tmp_path: Path) -> None:
    for n in (1, 2):
        put(tmp_path / f"big-Q4_0-0000{n}-of-00002.gguf", 5)
    (model,) = elsewhere.models([str(tmp_path)])
    assert (model.name, model.n_bytes, len(model.files)) == ("big-Q4_0", 10, 2)
    assert disk.open_path(tmp_path / "big-Q4_0-00002-of-00002.gguf").path == model.path
    (tmp_path / "big-Q4_0-00002-of-00002.gguf").unlink()
    assert elsewhere.models([str(tmp_path)]) == []
    with pytest.raises(ModelLoadError, match="one of 2 parts, of which 1 are missing: big-Q4_0-00002-of-00002.gguf"):
        disk.open_path(tmp_path / "big-Q4_0-00001-of-00002.gguf")


def test_a_name_that_is_not_utf_8_is_passed_over_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd = os.fsdecode(b"caf\xe9")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    try:
        put(paths.models_dir() / odd / "x.gguf")
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")
    (
        put(paths.models_dir() / f"{odd}.gguf"),
        put(paths.models_dir() / "good" / f"{odd}.gguf"),
        put(tmp_path / "mine" / f"{odd}.gguf"),
    )
    put(tmp_path / "hub" / f"models--o--{odd}" / "snapshots" / "r" / "x.gguf"), put(tmp_path / "mine" / "own.gguf")
    ollama(tmp_path / "ollama", f"library/{odd}", b"GGUF"), ollama(tmp_path / "ollama", "library/good", b"GGUF")
    found = library.local([str(tmp_path / "mine")])
    assert {model.name for model in found} == {"own", "ollama/good:latest"}
    assert json.dumps([model.name for model in found], ensure_ascii=False).encode()
    assert caplog.text.count("not written in UTF-8") == 6 and r"caf\xe9.gguf is passed over" in caplog.text
    with pytest.raises(ModelLoadError, match="not written in UTF-8"):
        library.find(str(tmp_path / "mine" / f"{odd}.gguf"))
