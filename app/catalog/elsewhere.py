"""Models that other programs have on disk: found where those keep them, offered by name, never moved or deleted.

The layouts, as these programs write them:
  LM Studio   ~/.lmstudio/models (before 0.3.6 ~/.cache/lm-studio/models): publisher/repository/files
  Ollama      $OLLAMA_MODELS or ~/.ollama/models: manifests/HOST/NAMESPACE/NAME/TAG are JSON whose `layers` have a media type
              and a digest; blobs/sha256-DIGEST is the file. The layer of type application/vnd.ollama.image.model is a GGUF.
  the hub     $HF_HUB_CACHE, $HF_HOME/hub or ~/.cache/huggingface/hub: models--OWNER--NAME/snapshots/REVISION/files, mostly
              links into blobs/; refs/main holds the revision that was fetched last
What cannot be read, or is not as it should be, is passed over: it is not ours to complain about.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.catalog import disk
from app.catalog.disk import LocalModel

log = logging.getLogger(__name__)

LM_STUDIO, OLLAMA, HUB = "LM Studio", "Ollama", "the hub's cache"
_PREFIXES = {LM_STUDIO: "lmstudio", OLLAMA: "ollama", HUB: "hf"}
_DEPTH = 3
"""Folders below one that is searched: publisher, repository, and one for the quantisation."""
_OLLAMA_MODEL = "application/vnd.ollama.image.model"
_OLLAMA_ADAPTER = "application/vnd.ollama.image.adapter"
_MAX_MANIFEST_BYTES = 1 << 20


def models(folders: Iterable[str] = ()) -> list[LocalModel]:
    """All of them. folders: the person's own, from the settings."""
    own = [Path(name).expanduser() for name in folders]
    sources = (
        *(_searched(folder, LM_STUDIO) for folder in lm_studio_folders()),
        _in_ollama(ollama_folder()),
        _in_hub_cache(hub_cache()),
        *(_searched(folder, str(folder), prefix="") for folder in own),
    )
    return [model for source in sources for model in _readable(source)]


def _readable(source: Iterator[LocalModel]) -> Iterator[LocalModel]:
    """As many as can be had: a folder that cannot be read takes no other's models away."""
    try:
        yield from source
    except OSError as error:
        log.debug("A folder of models cannot be read: %s", error)


def lm_studio_folders() -> list[Path]:
    return [Path("~/.lmstudio/models").expanduser(), Path("~/.cache/lm-studio/models").expanduser()]


def ollama_folder() -> Path:
    return Path(os.environ.get("OLLAMA_MODELS") or "~/.ollama/models").expanduser()


def hub_cache() -> Path:
    """As huggingface_hub finds it."""
    if named := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(os.path.expandvars(named)).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.path.expandvars(os.environ.get("HF_HOME") or f"{cache}/huggingface")).expanduser() / "hub"


def _searched(folder: Path, origin: str, prefix: str | None = None) -> Iterator[LocalModel]:
    """Models in a folder and the folders below it, named by where they lie in it."""
    for below in _folders(folder, _DEPTH):
        try:
            path = below.relative_to(folder).as_posix()
            # Files that lie loose in the folder that was named go by their own names.
            here = disk.in_folder(below, "" if path == "." else path)
        except OSError as error:
            log.debug("%s cannot be read: %s", below, error)
            continue
        for model in here:
            yield _named(model, origin, prefix)


def _folders(folder: Path, depth: int) -> Iterator[Path]:
    yield folder
    if not depth:
        return
    try:
        below = sorted(entry.path for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return
    for path in below:
        yield from _folders(Path(path), depth - 1)


def _in_ollama(folder: Path) -> Iterator[LocalModel]:
    manifests = folder / "manifests"
    for path in sorted(_files(manifests, 4)):
        try:
            layers = _layers(path)
            kinds = [layer["mediaType"] for layer in layers]
            (digest,) = (str(layer["digest"]) for layer in layers if layer["mediaType"] == _OLLAMA_MODEL)
            algorithm, _, digits = digest.partition(":")
            blob = folder / "blobs" / f"{algorithm}-{digits}"
            if algorithm != "sha256" or not digits.isalnum() or _OLLAMA_ADAPTER in kinds:
                continue
            n_bytes = blob.stat().st_size
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.debug("%s is no manifest of a model: %s", path, error)
            continue
        host, *names, tag = path.relative_to(manifests).parts
        # As Ollama itself shortens them.
        names = names[names[0] == "library" :] if host == "registry.ollama.ai" else [host, *names]
        yield _named(LocalModel(f"{'/'.join(names)}:{tag}", blob, "gguf", n_bytes, False), OLLAMA)


def _layers(path: Path) -> list[dict[str, Any]]:
    if path.stat().st_size > _MAX_MANIFEST_BYTES:
        raise ValueError("it is too long")
    layers = json.loads(path.read_text("utf-8"))["layers"]
    if not isinstance(layers, list):
        raise ValueError("its layers are no list")
    return layers


def _files(folder: Path, depth: int) -> Iterator[Path]:
    """Files exactly `depth` folders deep."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if depth == 1 and entry.is_file():
            yield Path(entry.path)
        elif depth > 1 and entry.is_dir():
            yield from _files(Path(entry.path), depth - 1)


def _in_hub_cache(folder: Path) -> Iterator[LocalModel]:
    for repository in sorted(_below(folder, "models--*")):
        try:
            revisions = {path.name: path for path in _below(repository / "snapshots", "*")}
            newest = max(revisions.values(), key=lambda path: path.stat().st_mtime, default=None)
            main = repository / "refs" / "main"
            current = revisions.get(main.read_text("utf-8").strip(), newest) if main.is_file() else newest
            name = repository.name.removeprefix("models--").replace("--", "/", 1)
            here = disk.in_folder(current, name) if current is not None else []
        except (OSError, UnicodeDecodeError) as error:
            log.debug("%s cannot be read: %s", repository, error)
            continue
        for model in here:
            # Weights without a tokenizer are a download that was not finished, or a part of another kind of model.
            if model.kind == "gguf" or (model.path / "tokenizer.json").is_file():
                yield _named(model, HUB)


def _below(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob(pattern) if path.is_dir()] if folder.is_dir() else []


def _named(model: LocalModel, origin: str, prefix: str | None = None) -> LocalModel:
    prefix = _PREFIXES.get(origin, "") if prefix is None else prefix
    return replace(model, name=f"{prefix}/{model.name}" if prefix else model.name, origin=origin, managed=False)
