"""The hub: what a repository holds, and the download of a model from it.

A download goes on where an earlier one broke off, also one of a process that has ended. What arrives is compared with the sizes
and sums that the hub gives before a file gets its name, so that a model is there whole or not at all. Nothing of a repository is
ever run: only weights, configuration and tokenizer files are taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from app import paths
from app.catalog import access, disk, wire
from app.catalog.wire import Check, go_on
from app.db.lock import DatabaseInUse, FileLock
from app.options import format_bytes
from engine.errors import ModelLoadError

if TYPE_CHECKING:
    from app.catalog.choices import Choice

log = logging.getLogger(__name__)

HUB_ID = re.compile(r"(?P<repo>[a-z0-9][\w.-]*/[a-z0-9][\w.-]*?)(?::(?P<quant>[\w.-]+))?", re.ASCII | re.IGNORECASE)

Progress = Callable[[int, int, int], None]
"""(bytes that are there, bytes in all, bytes that this download has fetched so far); called on the download's thread. What it
raises ends the download, which can go on later."""

_LOOK_S = 0.1
_HASH_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Repository:
    """What the hub says of a repository at one revision."""

    name: str
    revision: str
    sizes: dict[str, int]
    sha256: dict[str, str]
    """Of the files for which the hub has it: those in large file storage, all weights among them."""
    git_sha1: dict[str, str] = field(default_factory=dict)
    """Of the others: as git names a file by its bytes."""

    def sum_of(self, name: str) -> str:
        """What tells a file from one that had this name before."""
        return self.sha256.get(name) or self.git_sha1.get(name) or self.revision


def parse_id(text: str) -> tuple[str, str | None] | None:
    """('owner/name', quantisation or None) when `text` has the form of a hub id."""
    match = HUB_ID.fullmatch(text)
    return (match["repo"], match["quant"]) if match else None


def folder_of(repo: str) -> Path:
    """Where a repository's files lie on disk."""
    return paths.models_dir() / repo.replace("/", "--")


def look_up(repo: str, check: Check = go_on) -> Repository:
    """Ask the hub. ModelLoadError when there is no such repository, or no hub."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub.hf_api import ModelInfo  # slow to import, and needed by a pull only
    from huggingface_hub.utils import validate_repo_id

    if access.tighten():
        log.warning("The hub's token in %s could be read by others; now only you can", access.token_path())
    with _explained(repo):
        validate_repo_id(repo)
        info = ModelInfo(**wire.get_json(f"{access.endpoint()}/api/models/{repo}", {"blobs": True}, check))
    files = info.siblings or []
    return Repository(
        repo,
        info.sha or "main",
        {file.rfilename: file.size or 0 for file in files},
        {file.rfilename: file.lfs.sha256 for file in files if file.lfs is not None},
        {file.rfilename: file.blob_id for file in files if file.lfs is None and file.blob_id},
    )


def fetch(repository: Repository, name: str, start: int, n_bytes: int, check: Check = go_on) -> bytes:
    """A piece of a file, by a range request. ModelLoadError where it does not come."""
    with _explained(repository.name):
        return wire.fetch(_url(repository, name), start, n_bytes, check)


def _url(repository: Repository, name: str) -> str:
    from huggingface_hub import hf_hub_url

    return hf_hub_url(repository.name, name, revision=repository.revision, endpoint=access.endpoint())


def download(repository: Repository, choice: Choice, progress: Progress | None = None, check: Check = go_on) -> disk.LocalModel:
    """Download one model, or fetch what is missing after a download that broke off, and compare it with the hub's sums.

    Files of an earlier revision are replaced. Another download into the same folder, also of another process, is waited for.
    Without `progress`, a bar is drawn on the terminal. ModelLoadError for want of room, and for what arrived damaged, which is
    removed.
    """
    for name in choice.files:
        if PurePosixPath(name).is_absolute() or not {"..", ""}.isdisjoint(name.replace("\\", "/").split("/")):
            raise ModelLoadError(f"{repository.name} has a file {name!r}, whose name leads elsewhere.", "Take another upload.")
    with _explained(choice.repo), _alone(choice.repo, check), _bar(choice, progress) as tell:
        _Download(repository, choice, tell, check).run()
    folder = folder_of(choice.repo)
    return disk.open_path(folder / choice.files[0] if choice.is_gguf else folder)


class _Download:
    """One model's, into its folder, in which nobody else downloads meanwhile."""

    def __init__(self, repository: Repository, choice: Choice, progress: Progress, check: Check) -> None:
        self._repository = repository
        self._choice = choice
        self._progress = progress
        self._check = check
        self._folder = folder_of(choice.repo)
        self._parts = self._folder / disk.PARTS
        self._done = self._fetched = 0
        """Bytes."""

    def run(self) -> None:
        paths.create(self._parts)
        self._require_room()
        self._tell(0)
        # Nothing gets its name before all is whole: a folder is a model, or is none.
        whole = [name for name in self._choice.files if not self._is_here(name)]
        for name in whole:
            self._receive(name)
        for name in sorted(whole, key=lambda name: name == "config.json"):
            target = self._folder / name
            paths.create(target.parent)
            os.replace(self._part(name), target)
        (self._folder / disk.INCOMPLETE).unlink(missing_ok=True)
        if not any(self._parts.iterdir()):
            self._parts.rmdir()

    def _is_here(self, name: str) -> bool:
        path = self._folder / name
        if not path.is_file() or _differs(self._repository, name, path, self._check):
            return False
        self._part(name).unlink(missing_ok=True)
        self._tell(self._repository.sizes[name])
        return True

    def _receive(self, name: str) -> None:
        part, size = self._part(name), self._repository.sizes[name]
        for old in self._parts.iterdir():  # of what the file was in an earlier revision
            if old.name.rpartition(".")[0].rpartition(".")[0] == _flat(name) and old != part:
                old.unlink()
        self._tell(_size(part) if _size(part) <= size else 0)
        wire.receive(_url(self._repository, name), part, size, self._got, self._check)
        if problem := _differs(self._repository, name, part, self._check):
            part.unlink()
            raise ModelLoadError(
                f"{name} of {self._repository.name} arrived damaged: {problem}. It was removed.", "Pull it again."
            )

    def _got(self, n_bytes: int) -> None:
        self._fetched += n_bytes
        self._tell(n_bytes)

    def _tell(self, n_more: int) -> None:
        self._done += n_more
        self._progress(self._done, self._choice.n_bytes, self._fetched)

    def _part(self, name: str) -> Path:
        """One of the file's bytes: a newer revision does not go on with those of an older one."""
        return self._parts / f"{_flat(name)}.{self._repository.sum_of(name)[:16]}.part"

    def _require_room(self) -> None:
        sizes = self._repository.sizes
        there = {name: _size(self._folder / name) == sizes[name] for name in self._choice.files}
        missing = sum(sizes[name] - min(sizes[name], _size(self._part(name))) for name in there if not there[name])
        free = shutil.disk_usage(self._folder).free
        if missing > free:
            raise ModelLoadError(
                f"{self._choice.repo} needs {format_bytes(missing)} more, but {self._folder} has {format_bytes(free)} left.",
                "Make room with `pagewell models rm`, or set PAGEWELL_HOME to another disk.",
            )


def _flat(name: str) -> str:
    return name.replace("/", "--")


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _differs(repository: Repository, name: str, path: Path, check: Check) -> str:
    """In what a file is not as the hub says, in words; '' where it is."""
    size = path.stat().st_size
    if size != repository.sizes[name]:
        return f"it has {size} bytes, not {repository.sizes[name]}"
    if (wanted := repository.sha256.get(name)) is not None:
        kind, digest = "SHA-256", hashlib.sha256()
    elif (wanted := repository.git_sha1.get(name)) is not None:
        kind, digest = "git's SHA-1", hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    else:
        return ""
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_HASH_BYTES):
            check()
            digest.update(piece)
    return f"its {kind} is {digest.hexdigest()}, not {wanted}" if digest.hexdigest() != wanted else ""


@contextlib.contextmanager
def _alone(repo: str, check: Check) -> Iterator[None]:
    """One download into a folder at a time, whichever process it is of."""
    folder = paths.models_dir() / ".locks"
    paths.create(folder)
    lock = FileLock(folder / f"{folder_of(repo).name}.lock")
    while True:
        try:
            lock.take()
        except DatabaseInUse:
            check()
            time.sleep(_LOOK_S)
        else:
            break
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _bar(choice: Choice, progress: Progress | None) -> Iterator[Progress]:
    """`progress`, or one that draws on the terminal."""
    if progress is not None:
        yield progress
        return
    from tqdm import tqdm

    with tqdm(total=choice.n_bytes, desc=choice.name, unit="B", unit_scale=True, unit_divisor=1024) as bar:

        def tell(done: int, total: int, fetched: int) -> None:
            bar.initial = done - fetched  # the pace is that of what is fetched
            bar.update(done - bar.n)

        yield tell


@contextlib.contextmanager
def _explained(repo: str) -> Iterator[None]:
    """What huggingface_hub raises, as an error for the person."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        hint = "Ask for access on its page at the hub, then run `pagewell models login`."
        raise ModelLoadError(f"{repo} is gated: its makers give access to those who ask.", hint) from error
    except errors.HFValidationError as error:
        raise ModelLoadError(f"{repo} is no name of a model at the hub: {error}", "Name it as owner/name.") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"The hub has no model {repo}, or it is private.", "Check the spelling, or run `pagewell models login`."
        ) from error
    except (errors.HTTPError, errors.OfflineModeIsEnabled) as error:
        raise ModelLoadError(
            f"The hub could not be reached for {repo}: {error}", "Check the network, then run it again."
        ) from error
    except OSError as error:
        raise ModelLoadError(f"{repo} could not be stored: {error}", "Check room and permissions, then run it again.") from error
