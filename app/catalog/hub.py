"""Models of the hub: what a repository offers, which of its files Pagewell can load, and their download.

huggingface_hub downloads (with progress, with the person's own token and endpoint; a file that is there whole is not
fetched again). Nothing of a repository is ever run: only weights, configuration and tokenizer files are taken.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from app import paths
from app.catalog import disk
from app.options import did_you_mean, format_bytes
from engine.errors import ModelLoadError

HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(?::(?P<quant>[\w.-]+))?")
# fmt: off
QUANTS = (
    "Q4_K_M", "Q4_K_S", "Q5_K_M", "Q5_K_S", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
    "MXFP4", "Q3_K_L", "Q3_K_M", "IQ3_M", "IQ3_S", "Q3_K_S", "Q3_K", "IQ3_XS", "IQ3_XXS", "BF16", "F16", "F32", "Q2_K", "Q2_K_S",
    "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "TQ2_0", "TQ1_0", "IQ1_M", "IQ1_S",
)
# fmt: on
"""What the loader reads, the one to prefer first: a good size for its quality."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of a repository that make one model."""

    repo: str
    files: tuple[str, ...]
    n_bytes: int


def parse_id(text: str) -> tuple[str, str | None] | None:
    """('owner/name', quantisation or None) when `text` has the form of a hub id."""
    match = HUB_ID.fullmatch(text)
    return (match["repo"], match["quant"]) if match else None


def folder_of(repo: str) -> Path:
    """Where a repository's files lie on disk."""
    return paths.models_dir() / repo.replace("/", "--")


def choose(repo: str, quant: str | None, sizes: dict[str, int]) -> Choice:
    """Pick the files of one model out of a repository's {file name: bytes}. Vision projectors (mmproj) are no models.

    ModelLoadError, before anything is downloaded, when nothing there can be loaded; it names what there is.
    """
    ggufs: dict[str, list[str]] = {}
    for name in sorted(sizes):
        if name.endswith(".gguf") and "/" not in name and not _is_part(name) and "mmproj" not in name.lower():
            ggufs.setdefault(disk.quant_of(name), []).append(name)
    if ggufs:
        wanted = [quant.upper()] if quant else [q for q in QUANTS if q in ggufs]
        if quant and quant.upper() not in ggufs:
            raise ModelLoadError(
                f"{repo} has no {quant}.{did_you_mean(quant, ggufs)}", f"It has {', '.join(sorted(filter(None, ggufs)))}."
            )
        if not wanted or wanted[0] not in QUANTS:
            raise ModelLoadError(
                f"{repo} has only quantisations that Pagewell does not load: {', '.join(sorted(wanted or ggufs))}.",
                f"It loads {', '.join(QUANTS)}.",
            )
        name, *others = ggufs[wanted[0]]
        if others:
            raise ModelLoadError(
                f"{repo} has {len(others) + 1} files of {wanted[0]}: {', '.join([name, *others])}.",
                "Choose another quantisation, or download the file yourself and give its path.",
            )
        return Choice(repo, (name,), sizes[name])
    weights = [name for name in sizes if name.endswith(".safetensors") and "/" not in name]
    if weights and "config.json" in sizes:
        if "tokenizer.json" not in sizes:
            raise ModelLoadError(f"{repo} has no tokenizer.json.", "Look for a newer upload, or for one in GGUF.")
        files = (*(name for name in disk.FOLDER_FILES if name in sizes), *sorted(weights))
        return Choice(repo, files, sum(sizes[name] for name in files))
    raise ModelLoadError(
        f"{repo} has neither a whole GGUF file nor safetensors with config.json.", "Look for a GGUF upload of it."
    )


def pull(repo: str, quant: str | None) -> disk.LocalModel:
    """Download one model of a repository with a progress bar, or fetch what is missing after one that broke off."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import HfApi, errors, hf_hub_download  # slow to import, and needed by a pull only

    try:
        info = HfApi().model_info(repo, files_metadata=True)
        choice = choose(repo, quant, {file.rfilename: file.size or 0 for file in info.siblings or ()})
        folder = folder_of(repo)
        paths.create(folder)
        missing = max(0, choice.n_bytes - _n_bytes_there(folder, choice))
        free = shutil.disk_usage(folder).free
        if missing > free:
            raise ModelLoadError(
                f"{repo} needs {format_bytes(missing)} more, but {folder} has {format_bytes(free)} left.",
                "Make room with `pagewell models rm`, or set PAGEWELL_HOME to another disk.",
            )
        (folder / disk.INCOMPLETE).touch()
        for name in choice.files:
            hf_hub_download(repo, name, revision=info.sha, local_dir=folder)
        (folder / disk.INCOMPLETE).unlink()
    except errors.RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"The hub has no model {repo}, or it is private or gated.", "Check the spelling, or set HF_TOKEN."
        ) from error
    except (errors.HTTPError, errors.LocalEntryNotFoundError) as error:
        raise ModelLoadError(
            f"The hub could not be reached for {repo}: {error}", "Check the network, then run it again."
        ) from error
    except OSError as error:
        raise ModelLoadError(f"{repo} could not be stored: {error}", "Check room and permissions, then run it again.") from error
    return disk.open_path(folder / choice.files[0] if len(choice.files) == 1 else folder)


def _n_bytes_there(folder: Path, choice: Choice) -> int:
    """What needs no more room: the chosen files that are there, and parts of files with which a download goes on."""
    # A part whose name has a fourth piece belonged to one process alone; huggingface_hub does not go on with it.
    parts = [path for path in folder.glob(f"{disk.DOWNLOADS}/download/*.incomplete") if path.name.count(".") == 2]
    return sum(path.stat().st_size for path in (*parts, *(folder / name for name in choice.files)) if path.is_file())


def _is_part(name: str) -> bool:
    return bool(disk.SPLIT.search(name.removesuffix(".gguf")))
