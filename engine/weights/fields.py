"""Fields: typed reading of a configuration that somebody else wrote, with errors that name the file and the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelLoadError

_REQUIRED: Any = object()
_LARGEST = 2**31 - 1
_LARGEST_NUMBER = 1e15
"""Of numbers that are no whole ones; what is computed of a few of them stays finite."""
_HINT = "The file is damaged or of a kind Pagewell does not know; download the model again or take another one."


class Fields:
    """A mapping read by name; `prefix` stands before each name ("llama." in GGUF metadata). A null counts as absent."""

    def __init__(self, values: Mapping[str, Any], source: str, prefix: str = "") -> None:
        if not isinstance(values, Mapping):
            raise ModelLoadError(f"{source}: expected an object, found {type(values).__name__}.", _HINT)
        self.values = values
        self.source = source
        self.prefix = prefix

    def bad(self, name: str, what: str, hint: str = _HINT) -> ModelLoadError:
        """An error about one field, to be raised by the caller."""
        return ModelLoadError(f"{self.source}: {self.prefix}{name} {what}.", hint)

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        value = self.values.get(self.prefix + name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise self.bad(name, "is missing")
        return default

    def integer(self, name: str, default: Any = _REQUIRED, low: int = 1, high: int = _LARGEST) -> int:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            found = f"is {_short(value)}" if self.get(name, None) is not None else f"is missing and would be {_short(value)}"
            raise self.bad(name, f"{found}, expected a whole number from {low} to {high}")
        return value

    def number(self, name: str, default: Any = _REQUIRED, positive: bool = True) -> float:
        value = self.get(name, default)
        if value is default:
            return value
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _LARGEST_NUMBER
        if not numeric or (positive and value <= 0):
            raise self.bad(
                name, f"is {_short(value)}, expected a {'positive ' if positive else ''}number up to {_LARGEST_NUMBER:g}"
            )
        return float(value)

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.bad(name, f"is {_short(value)}, expected true or false")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        value = self.get(name, default)
        if not isinstance(value, str):
            raise self.bad(name, f"is {_short(value)}, expected text")
        return value

    def section(self, name: str) -> Fields:
        """A nested mapping; an empty one if the field is absent."""
        return Fields(self.get(name, {}), f"{self.source}: {self.prefix}{name}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
