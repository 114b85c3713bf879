"""Models in several GGUF files, as llama-gguf-split cuts them: NAME-00001-of-00003.gguf and so on. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MOST = 1 << 12
"""Parts of a model; more than the largest have at a gibibyte each."""


def parts(path: Path) -> list[Path]:
    """Where the parts of a model lie of which `path` is one, by its name; the path alone where it is not named like a part."""
    match = _PART.fullmatch(path.name)
    count = int(match[3]) if match else 0
    if match is None or not 1 <= int(match[2]) <= count <= _MOST:
        return [path]
    return [path.with_name(f"{match[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
