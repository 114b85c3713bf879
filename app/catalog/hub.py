"""The hub: what a repository holds, and the download of a model from it.

huggingface_hub downloads (with progress, with the person's own token and endpoint, going on where it broke off); what arrives is
compared with the sizes and SHA-256 sums that the hub gives. Nothing of a repository is ever run: only weights, configuration and
tokenizer files are taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import paths
from app.catalog import access, disk
from app.options import format_bytes
from engine.errors import ModelLoadError

if TYPE_CHECKING:
    from app.catalog.choices import Choice

log = logging.getLogger(__name__)

HUB_ID = re.compile(r"(?P<repo>[a-z0-9][\w.-]*/[a-z0-9][\w.-]*?)(?::(?P<quant>[\w.-]+))?", re.ASCII | re.IGNORECASE)

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all); called from any thread. What it raises ends the download, which can go on later."""


@dataclass(frozen=True, slots=True)
class Repository:
    """What the hub says of a repository at one revision."""

    name: str
    revision: str
    sizes: dict[str, int]
    sha256: dict[str, str]
    """Of the files for which the hub has it: those in large file storage, all weights among them."""


def parse_id(text: str) -> tuple[str, str | None] | None:
    """('owner/name', quantisation or None) when `text` has the form of a hub id."""
    match = HUB_ID.fullmatch(text)
    return (match["repo"], match["quant"]) if match else None


def folder_of(repo: str) -> Path:
    """Where a repository's files lie on disk."""
    return paths.models_dir() / repo.replace("/", "--")


def look_up(repo: str) -> Repository:
    """Ask the hub. ModelLoadError when there is no such repository, or no hub."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi  # slow to import, and needed by a pull only

    if access.tighten():
        log.warning("The hub's token in %s could be read by others; now only you can", access.token_path())
    with _explained(repo):
        info = HfApi(endpoint=access.endpoint()).model_info(repo, files_metadata=True)
    files = info.siblings or []
    return Repository(
        repo,
        info.sha or "main",
        {file.rfilename: file.size or 0 for file in files},
        {file.rfilename: file.lfs.sha256 for file in files if file.lfs is not None},
    )


def fetch(repository: Repository, name: str, start: int, n_bytes: int) -> bytes:
    """A piece of a file, by a range request. ModelLoadError where it does not come."""
    from huggingface_hub import get_token, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    if n_bytes <= 0:
        return b""
    url = hf_hub_url(repository.name, name, revision=repository.revision, endpoint=access.endpoint())
    headers = build_hf_headers(token=get_token()) | {"Range": f"bytes={start}-{start + n_bytes - 1}"}
    with _explained(repository.name):
        response = get_session().get(url, headers=headers, follow_redirects=True)
        hf_raise_for_status(response)
    # A server that knows no ranges sends the whole file from its beginning.
    return response.content[:n_bytes] if response.status_code == 206 else response.content[start : start + n_bytes]


def download(repository: Repository, choice: Choice, progress: Progress | None = None) -> disk.LocalModel:
    """Download one model, or fetch what is missing after a download that broke off, and compare it with the hub's sums.

    Without `progress`, bars are drawn on the terminal. ModelLoadError for want of room, and for what arrived damaged, which is
    removed.
    """
    folder = folder_of(choice.repo)
    paths.create(folder)
    missing = max(0, choice.n_bytes - _n_bytes_there(folder, choice))
    free = shutil.disk_usage(folder).free
    if missing > free:
        raise ModelLoadError(
            f"{choice.repo} needs {format_bytes(missing)} more, but {folder} has {format_bytes(free)} left.",
            "Make room with `pagewell models rm`, or set PAGEWELL_HOME to another disk.",
        )
    with _explained(choice.repo):
        (folder / disk.INCOMPLETE).touch()
        _download(repository, choice, folder, progress)
        (folder / disk.INCOMPLETE).unlink()
    return disk.open_path(folder / choice.files[0] if choice.is_gguf else folder)


def _download(repository: Repository, choice: Choice, folder: Path, progress: Progress | None) -> None:
    from huggingface_hub import hf_hub_download

    done = 0
    for name in choice.files:
        options: dict[str, Any] = {}
        if progress is not None:
            options["tqdm_class"] = _reporting(progress, done, choice.n_bytes)
            progress(done, choice.n_bytes)
        hf_hub_download(
            repository.name, name, revision=repository.revision, local_dir=folder, endpoint=access.endpoint(), **options
        )
        _verify(repository, name, folder / name)
        done += repository.sizes[name]
    if progress is not None:
        progress(choice.n_bytes, choice.n_bytes)


def _verify(repository: Repository, name: str, path: Path) -> None:
    """Compare with what the hub says. ModelLoadError names what differs; the file is gone then."""
    size, wanted = repository.sizes[name], repository.sha256.get(name)
    problem = ""
    if path.stat().st_size != size:
        problem = f"it has {path.stat().st_size} bytes, not {size}"
    elif wanted is not None:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        problem = f"its SHA-256 is {found}, not {wanted}" if found != wanted else ""
    if problem:
        path.unlink()
        raise ModelLoadError(f"{name} of {repository.name} arrived damaged: {problem}. It was removed.", "Pull it again.")


def _reporting(progress: Progress, done: int, total: int) -> type:
    """A bar for huggingface_hub that draws nothing and reports instead."""
    from tqdm.std import tqdm

    class Reporting(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **(options | {"disable": True}))
            self.n_done = options.get("initial") or 0

        def update(self, n: float | None = 1) -> None:
            self.n_done += int(n or 0)
            progress(min(total, done + self.n_done), total)

    return Reporting


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
    except (errors.HTTPError, errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise ModelLoadError(
            f"The hub could not be reached for {repo}: {error}", "Check the network, then run it again."
        ) from error
    except OSError as error:
        raise ModelLoadError(f"{repo} could not be stored: {error}", "Check room and permissions, then run it again.") from error


def _n_bytes_there(folder: Path, choice: Choice) -> int:
    """What needs no more room: the chosen files that are there, and parts of files with which a download goes on."""
    # A part whose name has a fourth piece belonged to one process alone; huggingface_hub does not go on with it.
    parts = [path for path in folder.glob(f"{disk.DOWNLOADS}/download/**/*.incomplete") if path.name.count(".") == 2]
    return sum(path.stat().st_size for path in (*parts, *(folder / name for name in choice.files)) if path.is_file())
