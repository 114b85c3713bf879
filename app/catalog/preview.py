"""What a model of the hub is, read from its headers before it is downloaded.

Of a GGUF the first megabytes are fetched by range requests, until they hold the whole header, and laid at the head of a file
that is as long as the real one but empty behind it, which takes no room on the disk. The loader opens that as it would open the
real one, so that what it refuses is refused now, with the reason.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from app.catalog.choices import Choice
from engine.errors import ModelLoadError
from engine.weights.config import ModelConfig

_STEPS = (1 << 20, 4 << 20, 12 << 20, 32 << 20, 64 << 20)
"""Bytes of a file that are fetched; the header of one with 256k tokens and their merges takes about 15 MB."""
_FREQS = "rope_freqs.weight"
"""A tensor that belongs to the configuration."""

Fetch = Callable[[str, int, int], bytes]
"""(file of the repository, first byte, number of bytes) -> those of them that the file has"""


@dataclass(frozen=True, slots=True)
class Preview:
    """Facts that the headers tell."""

    config: ModelConfig
    n_params: int | None
    """None where only the configuration was read."""
    has_template: bool


def preview(choice: Choice, sizes: dict[str, int], fetch: Fetch) -> Preview:
    """Raises ModelLoadError where the model cannot be loaded: its architecture, its number formats, its tokenizer."""
    try:
        return _of_gguf(choice, sizes, fetch) if choice.is_gguf else _of_folder(choice, sizes, fetch)
    except ModelLoadError as error:
        raise ModelLoadError(f"{choice.name} cannot be loaded, so it is not downloaded. {error.message}", error.hint) from error


def _of_gguf(choice: Choice, sizes: dict[str, int], fetch: Fetch) -> Preview:
    from engine.text.tokenizer import Tokenizer
    from engine.weights.loader import open_checkpoint

    with tempfile.TemporaryDirectory() as scratch:
        try:
            first, *_ = [_sparse(Path(scratch), name, sizes[name], fetch) for name in choice.files]
            checkpoint = open_checkpoint(first)
            Tokenizer.from_gguf(checkpoint.metadata)
        except ModelLoadError as error:
            raise ModelLoadError(error.message.replace(f"{scratch}/", ""), error.hint) from error
        n_params = sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names())
        return Preview(checkpoint.config, n_params, "tokenizer.chat_template" in checkpoint.metadata)


def _sparse(folder: Path, name: str, size: int, fetch: Fetch) -> Path:
    """A file as long as the hub's, with its header and the values that belong to the configuration."""
    from engine.weights.gguf.file import GGUFFile, HeaderCut

    path = folder / PurePosixPath(name).name
    with path.open("wb", buffering=0) as file:
        for most in _STEPS:
            there = file.tell()
            if most > there < size:
                file.write(fetch(name, there, min(size, most) - there))
            try:
                GGUFFile(path)
            except HeaderCut:
                if file.tell() >= size or most == _STEPS[-1]:
                    raise
            except ModelLoadError:
                break  # the header is whole; that the tensors are missing, or what else is wrong, shows below
            else:
                break
        there = file.tell()
        file.truncate(size)
        freqs = GGUFFile(path).tensors.get(_FREQS)
        if freqs is not None and freqs.offset + freqs.n_bytes > there:
            file.seek(freqs.offset)
            file.write(fetch(name, freqs.offset, freqs.n_bytes))
    return path


def _of_folder(choice: Choice, sizes: dict[str, int], fetch: Fetch) -> Preview:
    from engine.weights.hf.config import from_hf

    texts = {name: fetch(name, 0, sizes[name]) for name in choice.files if not name.endswith((".safetensors", "tokenizer.json"))}
    try:
        config = json.loads(texts["config.json"])
    except ValueError as error:
        raise ModelLoadError(f"config.json is no JSON: {error}.", "Look for another upload.") from error
    has_template = "chat_template.jinja" in texts or b"chat_template" in texts.get("tokenizer_config.json", b"")
    return Preview(from_hf(config), None, has_template)
