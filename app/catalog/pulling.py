"""Pulling a model: what a repository offers this machine, the choice, and the download."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from app import paths
from app.catalog import advice, bundled, choices, disk, hub, library, shelf
from app.catalog.advice import Row
from app.catalog.disk import LocalModel
from app.catalog.preview import Preview, preview
from app.catalog.wire import Check, go_on
from app.machine import read_bytes_s
from engine.config import EngineConfig
from engine.errors import ModelLoadError

_USUAL = "Q4_K_M"
"""Its header is read to learn what the model is: nearly every repository has it."""

Choose = Callable[[Sequence[Row], Row | None], Row | None]
"""Gets a repository's rows and the one that is best here; the one to take, None to take none."""


def pull(
    name: str,
    choose: Choose | None = None,
    progress: hub.Progress | None = None,
    check: Check = go_on,
    place: Place | None = None,
) -> LocalModel:
    """Download a shelf model or a hub id; one that is on disk already is checked and kept.

    Whether the model can be loaded at all is seen before anything large is fetched. Where the name does not say which
    quantisation, `choose` does; None takes the one that is best here. progress: as hub.download. check: what it raises ends the
    pull, in whatever phase it is. place: as `offer`. ModelLoadError says what is in the way, ModelNotFound that there is no such
    name.
    """
    entry = shelf.BY_NAME.get(name.lower())
    if entry is not None and entry.hub_id is None:
        if progress is not None:
            progress(0, bundled.N_BYTES, 0)
        path = bundled.download(paths.models_dir() / bundled.NAME, quiet=progress is not None, check=check)
        return replace(disk.open_path(path), name=entry.name)
    parsed = hub.parse_id(entry.hub_id if entry and entry.hub_id else name)
    if parsed is None:
        library.find(name)
        raise library.ModelNotFound(
            f"{name!r} is on disk, and no name to download from.", "Pull a hub id (owner/name) or a shelf name."
        )
    offered = offer(*parsed, check, place, name)
    row = offered.best if choose is None else choose(offered.rows, offered.best)
    if row is None:
        what = "Nothing was chosen." if offered.best else f"Nothing of {offered.repository.name} fits into memory here."
        raise ModelLoadError(what, "Name one to take it all the same: " + ", ".join(row.choice.name for row in offered.rows))
    model = hub.download(offered.repository, row.choice, progress, check)
    return replace(model, name=entry.name if entry else row.choice.name)


def same(name: str, other: str) -> bool:
    """Whether two names, of the shelf or the hub, are of one download."""
    return _plain(name) == _plain(other)


def _plain(name: str) -> str:
    entry = shelf.BY_NAME.get(name.lower())
    return (entry.hub_id or entry.name if entry else name).lower()


@dataclass(frozen=True, slots=True)
class Offer:
    """What a repository has for this machine."""

    repository: hub.Repository
    facts: Preview
    rows: list[Row]
    """The smallest first; the one of the quantisation alone where one was named."""
    best: Row | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model would run, which says whether it fits there."""

    engine_for: Callable[..., EngineConfig] = lambda *_: EngineConfig()
    """What a model of these names would be loaded with."""
    free: int | None = None
    """Bytes to be had; None asks the system."""


def offer(repo: str, quant: str | None, check: Check = go_on, place: Place | None = None, name: str = "") -> Offer:
    """Ask the hub what a repository has, and read the headers of what would be taken. ModelLoadError as for `pull`.

    place: None is this machine as it stands now, with all settings at their defaults. name: another one of the model's.
    """
    place = place or Place()

    def config_of(choice: choices.Choice) -> EngineConfig:
        return place.engine_for(name or choice.name, choice.name, repo)

    repository = hub.look_up(repo, check)
    found = choices.choices(repo, repository.sizes)
    loaded = [choices.of_quant(found, quant)] if quant else choices.require_loaded(found)
    likely = min(loaded, key=lambda choice: (choice.quant != _USUAL, choice.n_bytes))
    fetch = partial(hub.fetch, repository, check=check)
    facts = preview(likely, repository.sizes, fetch)
    check()
    shown = loaded if quant else found
    rows = advice.rows(shown, facts, config_of, read_bytes_s=read_bytes_s(), free=place.free)
    best = rows[0] if quant else advice.best(rows)
    if best is not None and best.choice != likely:  # its own header may have other formats
        preview(best.choice, repository.sizes, fetch)
    return Offer(repository, facts, rows, best)
