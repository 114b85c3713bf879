"""Reading the JSON files of a model's folder, which somebody else wrote."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError

_MOST_BYTES = 64 << 20
"""As Python objects JSON may take twenty times its bytes; the longest files read so have one or two million."""

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Escapes of which two make a character beyond the first 65,536."""


def read_object(file: Path, hint: str = "Download the model again.") -> dict[str, Any] | None:
    """The object in a JSON file; None where there is no such file. Raises ModelLoadError for anything else."""
    try:
        if not file.is_file():  # a pipe would be waited for
            return None
        if (n_bytes := file.stat().st_size) > _MOST_BYTES:
            raise ModelLoadError(f"{file} has {n_bytes:,} bytes, more than {_MOST_BYTES:,}.", hint)
        raw = file.read_bytes()
        value = json.loads(raw)
        if _HALF.search(raw):  # half of a surrogate pair is no text, and nothing that is handed one takes it
            json.dumps(value, ensure_ascii=False).encode()
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file} cannot be read as JSON: {error}.", hint) from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{file} holds {type(value).__name__}, not an object.", hint)
    return value
