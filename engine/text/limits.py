"""Meter: what one rendering of a chat template may cost, so that no model file can occupy a thread or the memory.

A template makes values out of values. Operations whose result can be much larger than what they are given are priced
before they run, all others after.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

MAX_CPU_S = 2.0
"""Processor time of the rendering thread: other threads that keep the machine busy do not shorten it."""
MAX_VALUE = 2**24
"""Characters or items of one value; a prompt of a million tokens has about a quarter."""
MAX_TOTAL = 2**26
"""Steps, plus characters and items of all values that are made on the way."""
MAX_WIDTH = 10_000
"""What text may be padded to by a format."""

MAX_BITS = 2**14
"""Of a number."""

_STEPS_PER_LOOK = 1024
"""Reading a thread's clock is a system call."""

_LONG_FORMAT = re.compile(r"%(?:\([^)]*\))?[-+ #0-9.]*?(?:\*|[0-9]{5})")


class TemplateLimit(Exception):
    """A rendering takes too much time or memory; the message goes on after "The model's chat template"."""


class Meter:
    """Counts one rendering; not shared between threads."""

    __slots__ = ("_deadline_s", "_left", "_until_look")

    def __init__(self) -> None:
        self._deadline_s = time.thread_time() + MAX_CPU_S
        self._left = MAX_TOTAL
        self._until_look = _STEPS_PER_LOOK

    def spend(self, n: int) -> None:
        """n steps, characters or items, at least one. Raises TemplateLimit."""
        self._left -= n
        self._until_look -= n
        if self._left < 0:
            raise TemplateLimit(f"makes more than {MAX_TOTAL:,} characters of intermediate text")
        if self._until_look < 0:
            self.look()

    def look(self) -> None:
        """Raises TemplateLimit once the time is up."""
        self._until_look = _STEPS_PER_LOOK
        if time.thread_time() > self._deadline_s:
            raise TemplateLimit(f"computes for more than {MAX_CPU_S:g} s")


_METER: ContextVar[Meter] = ContextVar("meter")


@contextmanager
def metered() -> Iterator[None]:
    """Everything below needs one around it; one inside another shares the outer one's meter."""
    token = _METER.set(_METER.get(None) or Meter())
    try:
        yield
    finally:
        _METER.reset(token)


def look() -> None:
    _METER.get().look()


def steps(items: Iterable[Any]) -> Iterator[Any]:
    """The items of a loop, each counted."""
    spend = _METER.get().spend
    for item in items:
        spend(1)
        yield item


def priced(size: int) -> None:
    """Refuse a value that would have this many characters or items."""
    if size > MAX_VALUE:
        raise TemplateLimit(f"makes a value of more than {MAX_VALUE:,} characters")


def made(value: Any) -> Any:
    """A new value, counted by its own length."""
    n = len(value) if isinstance(value, (str, bytes, list, tuple, dict, set)) else 0
    priced(n)
    _METER.get().spend(n + 1)
    return value


def as_text(value: Any) -> Any:
    """A value about to be written out: of a list or an object everything in it is counted, as often as it is in it."""
    if not isinstance(value, str):
        weight(value)
    return value


def weight(value: Any) -> int:
    """Characters and items in a value, nested ones included, each of which is spent."""
    spend = _METER.get().spend
    total, stack = 0, [value]
    while stack:
        value = stack.pop()
        n = 1 + (len(value) if isinstance(value, (str, bytes)) else 0)
        total += n
        spend(n)
        if isinstance(value, Mapping):
            stack += value.keys()
            stack += value.values()
        elif isinstance(value, (list, tuple, set, frozenset)):
            stack += value
    return total


def joined(pieces: Iterable[str]) -> str:
    """What jinja joins a body's output with; it stops at the first character too many."""
    kept, total = [], 0
    for piece in pieces:
        total += len(piece)
        priced(total)
        _METER.get().spend(1)
        kept.append(piece)
    return "".join(kept)


def check_product(left: Any, right: Any) -> None:
    """left * right: a sequence repeated, or a number of so many digits."""
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, (str, bytes, list, tuple)) and isinstance(times, int):
            priced(len(sequence) * times)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def check_power(base: Any, exponent: Any) -> None:
    """base ** exponent"""
    if isinstance(base, int) and isinstance(exponent, int):
        _check_bits(base.bit_length() * exponent)


def _check_bits(n: int) -> None:
    if n > MAX_BITS:
        raise TemplateLimit(f"makes a number of more than {MAX_BITS:,} bits")


def check_percent(text: Any, values: Any) -> None:
    """text % values"""
    if isinstance(text, str):
        if _LONG_FORMAT.search(text):
            raise TemplateLimit(f"pads text to more than {MAX_WIDTH:,} characters")
        priced(len(text) + text.count("%") * weight(values))


def check_spec(spec: str) -> None:
    """A format specification of str.format."""
    if any(len(digits) > 4 for digits in re.findall("[0-9]+", spec)):
        raise TemplateLimit(f"pads text to more than {MAX_WIDTH:,} characters")


def check_growth(name: str, value: Any, arguments: Iterable[Any]) -> None:
    """Before a filter or a method of strings, by name, that can make far more of `value` than it is given."""
    texts = [a for a in arguments if isinstance(a, str)]
    if name == "replace" and isinstance(value, str) and len(texts) >= 2:
        priced(len(value) + value.count(texts[0]) * len(texts[1]))
    elif name in _PLACES:
        padding = max([0, *(abs(a) for a in arguments if isinstance(a, int)), *map(len, texts)])
        priced(padding * _PLACES[name](value))


_PLACES: dict[str, Callable[[Any], int]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill", "batch", "slice"), lambda value: 1),
    **dict.fromkeys(("tojson", "wordwrap"), weight),
    "join": len,
    "indent": lambda value: str(value).count("\n") + 1,
    "expandtabs": lambda value: value.count("\t"),
    "translate": len,
}
"""How often such an operation can put in its padding."""
