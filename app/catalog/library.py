"""A model by whatever a person calls it: path, name of one on disk, name on the shelf, hub id."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from app.catalog import disk, elsewhere, hub, shelf
from app.catalog.disk import LocalModel
from app.options import did_you_mean
from engine.errors import ModelLoadError

_RENAME = "Rename the file or folder."


class ModelNotFound(ModelLoadError):
    """No model goes by this name; the message names the nearest."""


class ModelNotDownloaded(ModelLoadError):
    """The model is known, but not on disk."""


def local(folders: Iterable[str] = ()) -> list[LocalModel]:
    """Every model on this machine, Pagewell's own first. folders: those of the settings. What several programs share is
    listed once."""
    own = _sayable(disk.installed())
    by_path = {model.path.resolve(): model for model in reversed([*own, *_sayable(elsewhere.models(folders))])}
    shelved = {model.path: model for name in shelf.BY_NAME if (model := on_disk(name, own))}
    return [shelved.get(model.path, model) for model in reversed(by_path.values())]


def _sayable(models: Iterable[LocalModel]) -> list[LocalModel]:
    """Without those whose names no answer of the server can carry."""
    sayable = []
    for model in models:
        if _is_sayable(model):
            sayable.append(model)
        else:
            disk.pass_over(model.path, f"its name is not written in UTF-8. {_RENAME}")
    return sayable


def _is_sayable(model: LocalModel) -> bool:
    """Bytes of a name that are no UTF-8 are lone surrogates in Python, which neither JSON nor a page can have."""
    try:
        f"{model.name}{model.path}".encode()
    except UnicodeEncodeError:
        return False
    return True


def find(name: str, folders: Iterable[str] = ()) -> LocalModel:
    """The model on disk that `name` means. Never downloads: raises ModelNotDownloaded, ModelNotFound, or ModelLoadError for a
    path that is no model's."""
    if _is_path(name):
        model = disk.open_path(Path(name))
        if not _is_sayable(model):
            raise ModelLoadError(f"The name of {os.fsencode(model.path)!r} is not written in UTF-8.", _RENAME)
        return model
    model = on_disk(name, _sayable(disk.installed())) or _elsewhere(name, _sayable(elsewhere.models(folders)))
    if model is not None:
        return model
    if name.lower() in shelf.BY_NAME or hub.parse_id(name):
        raise ModelNotDownloaded(f"{name} is not on disk yet.", f"Run `pagewell models pull {name}`.")
    known = {*shelf.BY_NAME, *(model.name for model in local(folders))}
    raise ModelNotFound(
        f"There is no model {name!r}.{did_you_mean(name, known)}",
        "Name a GGUF file, a folder, a hub id (owner/name) or one of `pagewell models list`.",
    )


def locate(name: str, folders: Iterable[str] = ()) -> LocalModel:
    """The model that `name` means, downloaded first where it has to be, with progress on the terminal."""
    try:
        return find(name, folders)
    except ModelNotDownloaded:
        from app.catalog.pulling import pull  # what is on disk is found without all that it imports

        return pull(name)


def _is_path(name: str) -> bool:
    looks_like_one = name.lower().endswith(".gguf") or name.startswith((".", "~", os.sep)) or (os.sep != "/" and os.sep in name)
    return looks_like_one or Path(name).exists()


def on_disk(name: str, models: Sequence[LocalModel]) -> LocalModel | None:
    """Of Pagewell's own models the one that `name` means: its own name, one of the shelf, or a hub id."""
    for model in models:
        if name.lower() == model.name.lower():
            return model
    entry = shelf.BY_NAME.get(name.lower())
    parsed = hub.parse_id(entry.hub_id if entry and entry.hub_id else name)
    if parsed is None:
        return None
    repo, quant = parsed
    for model in models:
        in_repo = hub.folder_of(repo) in (model.path, *list(model.path.parents)[:2])
        if in_repo and (quant is None or disk.quant_of(model.path.name) == quant.upper()):
            return replace(model, name=name.lower() if entry else name)
    return None


def _elsewhere(name: str, models: Iterable[LocalModel]) -> LocalModel | None:
    """By its whole name, or by the part behind the program's where only one model has it."""
    models = list(models)
    lower = name.lower()
    whole = [model for model in models if model.name.lower() == lower]
    short = [model for model in models if model.name.lower().partition("/")[2] == lower]
    return whole[0] if whole else short[0] if len(short) == 1 else None
