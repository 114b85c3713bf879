"""Models that are on disk: GGUF files, and folders in Hugging Face layout.

Pagewell's own folder (paths.models_dir) holds one folder for each model: the bundled one under its name, hub models
under owner--name. A GGUF file or a folder that a person puts there is found too.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from app import paths
from engine.errors import ModelLoadError

log = logging.getLogger(__name__)

SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
"""How the stem of one part of a split GGUF ends: its number, and that of all parts."""
PROJECTOR = "mmproj"
"""In the name of a GGUF that turns pictures into a model's input, and is no model."""
QUANT = re.compile(r"[-._](I?Q\d\w*|T?Q\d\w*|MXFP4\w*|BF16|F16|F32)$", re.IGNORECASE)
"""Quantisation at the end of a GGUF's stem, by the naming convention of the format."""

FOLDER_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
FOLDER_FILES += ("chat_template.jinja", "model.safetensors.index.json")
"""Files of a model in Hugging Face layout, beside its weights."""
INCOMPLETE = ".incomplete"
"""Earlier versions put it into a folder while its files were being downloaded; half a model is not taken for one."""
DOWNLOADS = Path(".cache", "huggingface")
"""Where huggingface_hub keeps, in the folder that it downloads into, parts of files and what it knows about them."""
PARTS = ".parts"
"""Folder in a model's folder for what of its files has been downloaded; they get their names once they are whole."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model that can be loaded as it is."""

    name: str
    """What a person types and clients see."""
    path: Path
    """A GGUF file, or a folder with config.json and safetensors."""
    kind: str
    """gguf or safetensors."""
    n_bytes: int
    """Weights on disk."""
    managed: bool
    """Really lay in Pagewell's own folder, links followed, when it was found: `models rm` may delete it if it still does."""
    origin: str = ""
    """Whose it is, where it is neither Pagewell's nor named by its path: LM Studio, Ollama, the hub's cache, a folder."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Of its weights."""
        if self.kind == "safetensors":
            return tuple(sorted(self.path.glob("*.safetensors")))
        return tuple(parts(self.path))


def names_of(model: LocalModel) -> tuple[str, ...]:
    """All by which a person may mean the model, in small letters, the most exact first: with its quantisation and without, then
    both without the part of the program that it comes from, which other programs may have too."""
    whole = model.name.lower()
    short = whole.partition("/")[2] if model.origin else ""
    return (*_with_quant(whole, model), *(_with_quant(short, model) if short else ()))


def _with_quant(name: str, model: LocalModel) -> tuple[str, ...]:
    quant = quant_of(model.path.name).lower()
    return (f"{name}:{quant}", name) if quant and ":" not in name else (name,)


def quant_of(file_name: str) -> str:
    """Quantisation that a GGUF's name tells ('Q4_K_M'), or ''."""
    match = QUANT.search(whole_name(Path(file_name).name.removesuffix(".gguf")))
    return match[1].upper() if match else ""


def whole_name(stem: str) -> str:
    """The stem of a GGUF without the number of the part that it is."""
    return SPLIT.sub("", stem)


def parts(path: Path) -> list[Path]:
    """All files of the GGUF that `path` is, or is a part of; those too that are missing."""
    match = SPLIT.search(path.stem)
    if match is None:
        return [path]
    n_parts = int(match[2])
    return [path.with_name(f"{whole_name(path.stem)}-{n:05}-of-{n_parts:05}{path.suffix}") for n in range(1, n_parts + 1)]


def is_model_file(path: Path) -> bool:
    """Whether a GGUF's name is that of a model, or of the first part of one."""
    match = SPLIT.search(path.stem)
    return path.suffix.lower() == ".gguf" and PROJECTOR not in path.name.lower() and (match is None or int(match[1]) == 1)


def open_path(path: Path) -> LocalModel:
    """The model in a file or folder. ModelLoadError says what is not as a model should be."""
    path = path.expanduser()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelLoadError(
                f"{path} is no GGUF file.", "Name a .gguf file, or the folder that holds config.json and safetensors."
            )
        files = parts(path)
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise ModelLoadError(
                f"{path} is one of {len(files)} parts, of which {len(missing)} are missing: {', '.join(missing[:3])}.",
                "Put all parts into one folder, or pull the model again.",
            )
        return LocalModel(whole_name(path.stem), files[0], "gguf", _n_bytes(files), _is_managed(path))
    if not path.is_dir():
        raise ModelLoadError(
            f"There is no file or folder {path}.", "Check the spelling; `pagewell models list` shows the known models."
        )
    try:
        found = in_folder(path)
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error}", "Check its links and permissions.") from error
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(sorted(model.path.name for model in found))
        raise ModelLoadError(f"{path} holds {len(found)} models: {names}.", "Name one of the files.")
    raise ModelLoadError(
        f"{path} holds no model: there is neither a .gguf file nor config.json with .safetensors files.",
        "Weights in other formats (.bin, .pt, .onnx) are not loaded.",
    )


def installed() -> list[LocalModel]:
    """Every model in Pagewell's folder, by name."""
    found: list[LocalModel] = []
    folder = paths.models_dir()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            found += _installed_at(path)
        except (OSError, ModelLoadError) as error:
            pass_over(path, str(error))
    return sorted(found, key=lambda model: model.name.lower())


def _installed_at(path: Path) -> list[LocalModel]:
    """Models of a file or folder in Pagewell's."""
    if path.is_dir():
        # A repository may have a folder for each quantisation.
        below = [model for folder in sorted(path.iterdir()) if folder.is_dir() for model in _below(folder)]
        return [*in_folder(path), *below]
    return [open_path(path)] if is_model_file(path) and all(file.is_file() for file in parts(path)) else []


@cache
def pass_over(path: Path, why: str) -> None:
    """Say, once, that what lies there is no model for whoever lists them."""
    log.warning("%s is passed over: %s", os.fsencode(path).decode("utf-8", "backslashreplace"), why)


def _below(folder: Path) -> list[LocalModel]:
    """Models in a folder of a repository's folder, told apart by their quantisation."""
    name = folder.parent.name.replace("--", "/", 1)
    ggufs = [model for model in in_folder(folder) if model.kind == "gguf"]
    return [replace(model, name=f"{name}:{quant_of(model.path.name) or folder.name}") for model in ggufs]


def require_own(model: LocalModel) -> None:
    """ModelLoadError for a model that is not Pagewell's to delete, which says whose it is."""
    # Folders may have been moved, with a link left behind, since the model was found.
    if not (model.managed and _is_managed(model.path)):
        whose = f"It belongs to {model.origin}: delete it there." if model.origin else "Delete it yourself."
        raise ModelLoadError(f"{model.path} is not in {paths.models_dir()}, so it is not Pagewell's to delete.", whose)


def remove(model: LocalModel) -> int:
    """Delete a model's own files from Pagewell's folder; the model's folder goes too once nothing else lies in it. The bytes that
    became free.

    ModelLoadError for a model that lies elsewhere (that is the person's own, or another program's), and when a file cannot be
    deleted.
    """
    require_own(model)
    folder = (model.path if model.path.is_dir() else model.path.parent).resolve()
    # config.json goes first: what an interruption leaves is then no model any more.
    own = [*(folder / name for name in FOLDER_FILES), *folder.glob("*.safetensors")] if model.path.is_dir() else model.files
    freed = 0
    try:
        for path in own:
            # A link, or a file with another name elsewhere, frees nothing.
            freed += path.stat().st_size if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1 else 0
            path.unlink(missing_ok=True)
        if folder != paths.models_dir().resolve() and not in_folder(folder):
            _remove_empty(folder)
    except OSError as error:
        raise ModelLoadError(f"{model.path} could not be deleted whole: {error}", "Check its permissions.") from error
    return freed


def _remove_empty(folder: Path) -> None:
    """Remove what a download leaves beside its files, then the folder if nothing is left in it."""
    (folder / INCOMPLETE).unlink(missing_ok=True)
    if not (folder / PARTS).is_symlink():
        shutil.rmtree(folder / PARTS, ignore_errors=True)
    cache = folder / DOWNLOADS.parts[0]
    if cache.is_dir() and not cache.is_symlink() and not (folder / DOWNLOADS).is_symlink():
        shutil.rmtree(folder / DOWNLOADS, ignore_errors=True)
        if not any(cache.iterdir()):
            cache.rmdir()
    if not any(folder.iterdir()):
        folder.rmdir()


def _is_managed(path: Path) -> bool:
    return paths.models_dir().resolve() in path.resolve().parents


def in_folder(folder: Path, name: str | None = None) -> list[LocalModel]:
    """Models of one folder: each GGUF in it, or the folder itself. Half-downloaded ones do not count.

    name: what they are called, None: as the folder says; "": each GGUF by its own file's name.
    """
    if name is None:
        name = folder.name.replace("--", "/", 1)
    ggufs = [path for path in sorted(folder.glob("*.gguf")) if is_model_file(path) and all(p.is_file() for p in parts(path))]
    if ggufs:
        return [
            LocalModel(of_file, path, "gguf", _n_bytes(parts(path)), _is_managed(path))
            for of_file, path in zip(_names(name, ggufs), ggufs, strict=True)
        ]
    weights = sorted(folder.glob("*.safetensors"))
    if weights and (folder / "config.json").is_file() and not (folder / INCOMPLETE).exists():
        return [LocalModel(name or folder.name, folder, "safetensors", _n_bytes(weights), _is_managed(folder))]
    return []


def _names(name: str, ggufs: list[Path]) -> list[str]:
    """What the GGUF files of a folder of this name are called: by their quantisation where it tells them apart."""
    if not name:
        return [whole_name(path.stem) for path in ggufs]
    if len(ggufs) == 1:
        return [name]
    quants = [quant_of(path.name) for path in ggufs]
    tails = [q if q and quants.count(q) == 1 else whole_name(path.stem) for q, path in zip(quants, ggufs, strict=True)]
    return [f"{name}:{tail}" for tail in tails]


def _n_bytes(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)
