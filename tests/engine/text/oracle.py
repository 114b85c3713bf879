"""What tokenizers are compared with: transformers' conversion of the same GGUF, made once and cached (it takes a minute)."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import tokenizers

from engine.text.tokenizer import Tokenizer
from engine.weights.gguf.file import GGUFFile
from tests import models


@cache
def ours(gguf: Path) -> Tokenizer:
    return Tokenizer.from_gguf(metadata(gguf))


@cache
def metadata(gguf: Path) -> dict:
    return GGUFFile(gguf).metadata


def folder(gguf: Path) -> Path:
    """A folder with transformers' tokenizer.json for this file."""
    target = models.folder() / "tokenizers" / gguf.stem
    if not target.exists():
        from transformers import AutoTokenizer

        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(partial)
        partial.rename(target)
    return target


def theirs(gguf: Path) -> tokenizers.Tokenizer:
    """transformers' conversion; a copy of its own for each caller."""
    return tokenizers.Tokenizer.from_file(str(folder(gguf) / "tokenizer.json"))
