"""Models on disk: recognised, named, and deleted only where they are Pagewell's."""

from __future__ import annotations

from pathlib import Path

import pytest

from app import paths
from app.catalog import bundled, disk, library, pulling
from engine.errors import ModelLoadError
from tests import models


def put(path: Path, n_bytes: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * n_bytes)
    return path


def safetensors_folder(folder: Path) -> Path:
    put(folder / "config.json")
    put(folder / "model-00001-of-00002.safetensors", 3)
    put(folder / "model-00002-of-00002.safetensors", 4)
    return folder


@pytest.mark.parametrize(
    ("file_name", "quant"),
    [
        ("Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("gemma-3-4b-it-bf16.gguf", "BF16"),
        ("Model-IQ4_XS.gguf", "IQ4_XS"),
        ("Model-Q4_K_M-imat.gguf", ""),
        ("Qwen3.gguf", ""),
    ],
)
def test_the_quantisation_in_a_name(file_name: str, quant: str) -> None:
    assert disk.quant_of(file_name) == quant


def test_a_file_and_a_folder_open(tmp_path: Path) -> None:
    file = disk.open_path(put(tmp_path / "a" / "My-Model.Q8_0.gguf", 12))
    assert (file.name, file.kind, file.n_bytes, file.managed) == ("My-Model.Q8_0", "gguf", 12, False)
    assert disk.open_path(tmp_path / "a").path == file.path
    folder = disk.open_path(safetensors_folder(tmp_path / "b"))
    assert (folder.name, folder.kind, folder.n_bytes) == ("b", "safetensors", 7)


def test_what_is_no_model_is_refused_with_a_reason(tmp_path: Path) -> None:
    put(tmp_path / "two" / "a.gguf"), put(tmp_path / "two" / "b.gguf")
    put(tmp_path / "old" / "pytorch_model.bin"), put(tmp_path / "old" / "config.json")
    cases = {
        tmp_path / "none": "There is no file or folder",
        put(tmp_path / "weights.bin"): "is no GGUF file",
        put(tmp_path / "m-00001-of-00003.gguf"): "one of 3 parts, of which 2 are missing: m-00002-of-00003.gguf",
        tmp_path / "two": "holds 2 models: a.gguf, b.gguf",
        tmp_path / "old": "holds no model",
    }
    for path, said in cases.items():
        with pytest.raises(ModelLoadError, match=said):
            disk.open_path(path)


def test_installed_models_are_found_under_the_names_people_use() -> None:
    folder = paths.models_dir()
    put(folder / "Owner--Repo-GGUF" / "repo-q8_0.gguf")
    put(folder / "Owner--Two-GGUF" / "two-Q4_0.gguf"), put(folder / "Owner--Two-GGUF" / "two-F16.gguf")
    put(folder / "dropped-in.gguf")
    safetensors_folder(folder / "Owner--Dense")
    half = safetensors_folder(folder / "Owner--Half")
    (half / disk.INCOMPLETE).touch()
    names = [model.name for model in disk.installed()]
    assert names == ["dropped-in", "Owner/Dense", "Owner/Repo-GGUF", "Owner/Two-GGUF:F16", "Owner/Two-GGUF:Q4_0"]
    assert library.find("owner/two-gguf:f16").path.name == "two-F16.gguf"
    assert library.find("Owner/Dense").kind == "safetensors"


def test_one_folder_that_cannot_be_read_takes_no_other_away(caplog: pytest.LogCaptureFixture) -> None:
    folder = paths.models_dir()
    put(folder / "good" / "good.gguf")
    dangling = safetensors_folder(folder / "dangling")
    (dangling / "model-00003-of-00003.safetensors").symlink_to(folder / "nowhere")
    for _ in range(2):
        assert [model.name for model in library.local()] == ["good"]
    assert caplog.text.count("dangling is passed over") == 1
    with pytest.raises(ModelLoadError, match="cannot be read"):
        library.find(str(dangling))


def test_removing_leaves_the_neighbours_and_the_persons_own_files(tmp_path: Path) -> None:
    folder = paths.models_dir() / "Owner--Two"
    put(folder / "two-Q4_0.gguf"), put(folder / "two-F16.gguf")
    disk.remove(library.find("Owner/Two:Q4_0"))
    assert [path.name for path in folder.iterdir()] == ["two-F16.gguf"]
    disk.remove(library.find("Owner/Two"))
    assert not folder.exists() and paths.models_dir().exists()
    own = disk.open_path(put(tmp_path / "own.gguf"))
    with pytest.raises(ModelLoadError, match="not Pagewell's to delete"):
        disk.remove(own)
    assert own.path.exists()


def test_removing_takes_the_models_own_files_only() -> None:
    folder = paths.models_dir() / "mine"
    put(folder / "mine.gguf"), put(folder / "notes.txt"), put(folder / "big-00001-of-00002.gguf")
    put(folder / ".cache" / "huggingface" / "download" / "mine.gguf.metadata"), put(folder / disk.INCOMPLETE)
    disk.remove(library.find("mine"))
    assert {path.name for path in folder.iterdir()} == {"notes.txt", "big-00001-of-00002.gguf"}
    dense = safetensors_folder(paths.models_dir() / "Owner--Dense")
    put(dense / "tokenizer.json"), put(dense / "notes.txt")
    disk.remove(library.find("Owner/Dense"))
    assert [path.name for path in dense.iterdir()] == ["notes.txt"]


def test_removing_a_whole_download_leaves_no_folder() -> None:
    dense = safetensors_folder(paths.models_dir() / "Owner--Dense")
    put(dense / ".cache" / "huggingface" / "download" / "config.json.metadata")
    disk.remove(library.find("Owner/Dense"))
    assert not dense.exists()


def test_what_only_seems_to_lie_in_pagewells_folder_is_the_persons_own(tmp_path: Path) -> None:
    own = put(tmp_path / "own" / "x.gguf")
    put(own.parent / "diary.txt"), safetensors_folder(tmp_path / "dense")
    paths.create(paths.models_dir())
    (paths.models_dir() / "linked").symlink_to(own.parent)
    (paths.models_dir() / "dense").symlink_to(tmp_path / "dense")
    (paths.models_dir() / "file.gguf").symlink_to(own)
    up = paths.models_dir().joinpath(*[".."] * len(paths.models_dir().resolve().parts[1:]), *own.resolve().parts[1:])
    for name in (str(up), "linked", "dense", "file", str(paths.models_dir() / "linked" / "x.gguf")):
        with pytest.raises(ModelLoadError, match="not Pagewell's to delete"):
            disk.remove(library.find(name))
    assert {path.name for path in own.parent.iterdir()} == {"x.gguf", "diary.txt"}
    assert len(list((tmp_path / "dense").iterdir())) == 3


@pytest.mark.parametrize("name", ["dense", "gguf"])
def test_a_model_that_was_moved_away_since_it_was_found_is_not_deleted(tmp_path: Path, name: str) -> None:
    folder = paths.models_dir() / name
    if name == "dense":
        safetensors_folder(folder)
    else:
        put(folder / "x.gguf")
    model = library.find(name)
    moved = folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(moved)
    there = set(moved.iterdir())
    with pytest.raises(ModelLoadError, match="not Pagewell's to delete"):
        disk.remove(model)
    assert set(moved.iterdir()) == there


def test_removing_does_not_follow_links_out_of_the_folder(tmp_path: Path) -> None:
    weights = put(tmp_path / "own" / "model.safetensors")
    download = put(tmp_path / "cache" / "huggingface" / "precious")
    folder = paths.models_dir() / "Owner--Dense"
    put(folder / "config.json")
    (folder / weights.name).symlink_to(weights)
    (folder / ".cache").symlink_to(tmp_path / "cache")
    disk.remove(library.find("Owner/Dense"))
    assert weights.exists() and download.exists()
    assert [path.name for path in folder.iterdir()] == [".cache"]


def test_names_that_are_known_unknown_or_not_here_yet() -> None:
    with pytest.raises(library.ModelNotDownloaded, match="pagewell models pull qwen3-4b"):
        library.find("qwen3-4b")
    with pytest.raises(library.ModelNotDownloaded):
        library.find("Some/Repo:Q4_K_M")
    with pytest.raises(library.ModelNotFound, match="Did you mean 'qwen3-4b'"):
        library.find("qwen-3-4b")


def test_the_bundled_model_goes_by_its_name() -> None:
    """A link stands for the download, so that no test downloads what is on disk."""
    folder = paths.models_dir() / bundled.NAME
    paths.create(folder)
    (folder / bundled.FILE_NAME).symlink_to(models.smollm2())
    model = library.locate(bundled.NAME)
    assert (model.name, model.n_bytes) == (bundled.NAME, bundled.N_BYTES)
    assert pulling.pull(bundled.NAME) == model


def test_describe_reads_the_real_header() -> None:
    from app.catalog.inspect import describe

    facts = describe(disk.open_path(models.smollm2()))
    assert (facts["family"], facts["n_parameters"], facts["n_layers"]) == ("llama", 134_515_008, 30)
    assert facts["chat_template"] == "yes"
