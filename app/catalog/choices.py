"""What a repository of the hub offers: its GGUF files by quantisation, or its safetensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from app.catalog import disk
from app.options import did_you_mean
from engine.errors import ModelLoadError
from kernels.ops import BLOCKS, DENSE

LOADED = frozenset({*BLOCKS, *DENSE}) - {"I8"}
"""Types of tensors that the loader reads."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of a repository that make one model."""

    repo: str
    files: tuple[str, ...]
    """Paths in the repository; of a split GGUF all parts, in order."""
    n_bytes: int
    quant: str = ""
    """Of a GGUF, by its name."""

    @property
    def is_gguf(self) -> bool:
        return self.files[0].endswith(".gguf")

    @property
    def is_loaded(self) -> bool:
        """Whether the loader reads tensors of this quantisation, by its name; the file's header tells for sure."""
        return not self.quant or _kind(self.quant) in LOADED

    @property
    def name(self) -> str:
        """What a person types to get it."""
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


def _kind(quant: str) -> str:
    """The tensor type behind a mix: Q4_K of Q4_K_M, IQ3_S of IQ3_M."""
    if quant.startswith("IQ"):
        return quant if quant in LOADED else f"{quant.rpartition('_')[0]}_S"
    return quant.removesuffix("_S").removesuffix("_M").removesuffix("_L").removesuffix("_XL")


def choices(repo: str, sizes: Mapping[str, int]) -> list[Choice]:
    """All of a repository's {file name: bytes}, the smallest first; vision projectors (mmproj) are no models.

    A split GGUF is one choice, if all of its parts are there. ModelLoadError, which names what there is, when nothing is.
    """
    ggufs = [_whole(repo, name, sizes) for name in sorted(sizes) if disk.is_model_file(PurePosixPath(name))]
    found = [choice for choice in ggufs if choice is not None]
    if found:
        return sorted(found, key=lambda choice: choice.n_bytes)
    weights = [name for name in sizes if name.endswith(".safetensors") and "/" not in name]
    if weights and "config.json" in sizes:
        if "tokenizer.json" not in sizes:
            raise ModelLoadError(f"{repo} has no tokenizer.json.", "Look for a newer upload, or for one in GGUF.")
        files = (*(name for name in disk.FOLDER_FILES if name in sizes), *sorted(weights))
        return [Choice(repo, files, sum(sizes[name] for name in files))]
    raise ModelLoadError(
        f"{repo} has neither a whole GGUF file nor safetensors with config.json.", "Look for a GGUF upload of it."
    )


def _whole(repo: str, name: str, sizes: Mapping[str, int]) -> Choice | None:
    files = tuple(part.as_posix() for part in disk.parts(PurePosixPath(name)))
    if any(part not in sizes for part in files):
        return None
    # In some repositories only the folder of the parts tells the quantisation.
    quant = disk.quant_of(name) or disk.quant_of(f"x-{PurePosixPath(name).parent.name}")
    return Choice(repo, files, sum(sizes[part] for part in files), quant)


def of_quant(found: Sequence[Choice], quant: str) -> Choice:
    """The one of this quantisation. ModelLoadError when there is none, or several, or it is not loaded."""
    repo = found[0].repo
    names = sorted({choice.quant for choice in found if choice.quant})
    fitting = [choice for choice in found if choice.quant == quant.upper()]
    if not fitting:
        raise ModelLoadError(f"{repo} has no {quant}.{did_you_mean(quant, names)}", f"It has {', '.join(names) or 'one model'}.")
    if len(fitting) > 1:
        files = ", ".join(choice.files[0] for choice in fitting)
        raise ModelLoadError(
            f"{repo} has {len(fitting)} files of {quant.upper()}: {files}.",
            "Choose another quantisation, or download the file yourself and give its path.",
        )
    require_loaded(fitting)
    return fitting[0]


def require_loaded(found: Sequence[Choice]) -> list[Choice]:
    """Those that the loader reads, by their names. ModelLoadError when there is none."""
    loaded = [choice for choice in found if choice.is_loaded]
    if not loaded:
        names = ", ".join(sorted({choice.quant for choice in found}))
        raise ModelLoadError(
            f"{found[0].repo} has only quantisations that Pagewell does not load: {names}.",
            f"It loads {', '.join(sorted(LOADED))}.",
        )
    return loaded
