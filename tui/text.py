"""Numbers and strangers' strings as short, steady text."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
NONE = "–"
"""Shown where there is no value yet."""


def clean(text: str, keep: str = "") -> str:
    """A stranger's text without control and formatting characters, except those of `keep`."""
    return "".join(character if character.isprintable() or character in keep else " " for character in text)


def lines(text: str) -> str:
    """A stranger's text of several lines, cleaned; line breaks and tabs stay."""
    return clean(text, keep="\n\t")


def plain(text: str, width: int) -> str:
    """A stranger's text, cleaned and cut at its end to `width` characters."""
    shown = clean(text)
    return shown if len(shown) <= width else shown[: max(0, width - 1)] + "…"


def middle(text: str, width: int) -> str:
    """A stranger's text, cleaned and cut in its middle: ids begin alike and differ at their ends."""
    shown = clean(text)
    if len(shown) <= width:
        return shown
    tail = max(0, width - 1) // 2
    return shown[: max(0, width - 1 - tail)] + "…" + shown[len(shown) - tail :]


def count(value: float) -> str:
    """A count in at most five characters: 9999, 12.3k, 131k, 1.25M."""
    if value < 10_000:
        return f"{value:.0f}"
    for unit, scale in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        scaled = value / scale
        if scaled < 999.5:
            return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f}{unit}"
    return f"{value / 1e12:.1f}T"


def rate(value: float) -> str:
    """Per second: one decimal below 100, then like a count."""
    return f"{value:.1f}" if value < 99.95 else count(value)


def duration(seconds: float | None) -> str:
    """A short time in at most six characters: 31 ms, 0.42 s, 12.3 s, 4:05, 2:10 h, 3 d."""
    if seconds is None:
        return NONE
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return age(seconds)


def age(seconds: float) -> str:
    """A time in whole seconds: 7s, 4:05, 2:10h, 3d."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    if whole < 86_400:
        return f"{whole // 3600}:{whole % 3600 // 60:02}h"
    return f"{whole // 86_400}d"


def size(n_bytes: float) -> str:
    """Bytes in binary units."""
    value = float(n_bytes)
    for unit in _UNITS:
        if value < 1023.5 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes everything")


def share(value: float | None) -> str:
    """A share as percent; a little is never 0 %, not quite all never 100 %."""
    if value is None:
        return NONE
    percent = round(value * 100)
    if percent == 0 and value > 0:
        return "<1%"
    if percent == 100 and value < 1:
        return "99%"
    return f"{percent}%"
