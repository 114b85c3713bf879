"""A model by whatever a person calls it: path, name of one on disk, name on the shelf, hub id."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from app import paths
from app.catalog import bundled, disk, hub, shelf
from app.catalog.disk import LocalModel
from app.options import did_you_mean
from engine.errors import ModelLoadError


class ModelNotFound(ModelLoadError):
    """No model goes by this name; the message names the nearest."""


class ModelNotDownloaded(ModelLoadError):
    """The model is known, but not on disk."""


def find(name: str) -> LocalModel:
    """The model on disk that `name` means. Never downloads: raises ModelNotDownloaded or ModelNotFound."""
    if _is_path(name):
        return disk.open_path(Path(name))
    model = on_disk(name)
    if model is not None:
        return model
    if name.lower() in shelf.BY_NAME or hub.parse_id(name):
        raise ModelNotDownloaded(f"{name} is not on disk yet.", f"Run `pagewell models pull {name}`.")
    known = {*shelf.BY_NAME, *(model.name for model in disk.installed())}
    raise ModelNotFound(
        f"There is no model {name!r}.{did_you_mean(name, known)}",
        "Name a GGUF file, a folder, a hub id (owner/name) or one of `pagewell models list`.",
    )


def locate(name: str) -> LocalModel:
    """The model that `name` means, downloaded first where it has to be, with progress on the terminal."""
    try:
        return find(name)
    except ModelNotDownloaded:
        return pull(name)


def pull(name: str) -> LocalModel:
    """Download a shelf model or a hub id; one that is on disk already is checked and kept."""
    entry = shelf.BY_NAME.get(name.lower())
    if entry is not None and entry.hub_id is None:
        path = bundled.download(paths.models_dir() / bundled.NAME)
        return replace(disk.open_path(path), name=entry.name)
    parsed = hub.parse_id(entry.hub_id if entry else name)
    if parsed is None:
        find(name)
        raise ModelNotFound(f"{name!r} is on disk, and no name to download from.", "Pull a hub id (owner/name) or a shelf name.")
    return replace(hub.pull(*parsed), name=entry.name if entry else name)


def _is_path(name: str) -> bool:
    looks_like_one = name.lower().endswith(".gguf") or name.startswith((".", "~", os.sep)) or (os.sep != "/" and os.sep in name)
    return looks_like_one or Path(name).exists()


def on_disk(name: str) -> LocalModel | None:
    models = disk.installed()
    for model in models:
        if name.lower() == model.name.lower():
            return model
    entry = shelf.BY_NAME.get(name.lower())
    parsed = hub.parse_id(entry.hub_id if entry and entry.hub_id else name)
    if parsed is None:
        return None
    repo, quant = parsed
    for model in models:
        in_repo = model.path.parent == hub.folder_of(repo) or model.path == hub.folder_of(repo)
        if in_repo and (quant is None or disk.quant_of(model.path.name) == quant.upper()):
            return replace(model, name=name.lower() if entry else name)
    return None
