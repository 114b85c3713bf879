"""Every symbol and colour of the dashboard, as tables. Nothing here computes; widgets look up what they paint."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from textual.theme import Theme

from tui.feed.model import CACHED, FREE, PINNED, SHARED, USED


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of one theme, as #rrggbb."""

    background: str
    surface: str
    border: str
    text: str
    muted: str
    faint: str
    accent: str
    good: str
    warn: str
    bad: str
    output: tuple[str, ...]
    """The generation graph from its foot to its top."""
    prompt: tuple[str, ...]
    """The prefill graph from its foot to its top."""
    free: str
    cached: str
    owners: tuple[str, ...]
    """Hues of requests; the n-th is also the n-th letter."""


DARK = Palette(
    background="#0d1117",
    surface="#161b22",
    border="#30363d",
    text="#e6edf3",
    muted="#9198a1",
    faint="#545d68",
    accent="#58a6ff",
    good="#3fb950",
    warn="#d29922",
    bad="#f85149",
    output=("#26836c", "#2fa383", "#3fc79a", "#7ee8c0"),
    prompt=("#4a61b3", "#5b74c9", "#86a1f5", "#b7c8ff"),
    free="#21272f",
    cached="#4a5a6e",
    owners=(
        "#4c9be8", "#f0883e", "#56c271", "#db61a2", "#e3b341", "#9a7cf0",
        "#39c5bb", "#ff7b72", "#a5c83b", "#c78bdb", "#d2a679", "#79b8ff",
    ),
)  # fmt: skip

LIGHT = Palette(
    background="#ffffff",
    surface="#f6f8fa",
    border="#d1d9e0",
    text="#1f2328",
    muted="#59636e",
    faint="#8c959f",
    accent="#0969da",
    good="#1a7f37",
    warn="#9a6700",
    bad="#cf222e",
    output=("#8fd9bf", "#4fb894", "#2a9570", "#0f6e4f"),
    prompt=("#b9c7f2", "#8ba0e6", "#5f78d1", "#3d54ad"),
    free="#e4e8ec",
    cached="#aab6c4",
    owners=(
        "#2f7fd1", "#d1691e", "#2f9a4c", "#bf3989", "#b58407", "#7a52d6",
        "#138f86", "#d9432f", "#6f8f12", "#a457be", "#9c6b33", "#4f8fd9",
    ),
)  # fmt: skip


def _theme(name: str, palette: Palette, dark: bool) -> Theme:
    return Theme(
        name=name,
        primary=palette.accent,
        secondary=palette.muted,
        accent=palette.accent,
        success=palette.good,
        warning=palette.warn,
        error=palette.bad,
        foreground=palette.text,
        background=palette.background,
        surface=palette.background,
        panel=palette.surface,
        dark=dark,
        variables={
            "pw-border": palette.border,
            "pw-muted": palette.muted,
            "pw-faint": palette.faint,
            "pw-surface": palette.surface,
            "footer-background": palette.surface,
            "footer-key-foreground": palette.accent,
            "footer-description-foreground": palette.muted,
            "block-cursor-foreground": palette.text,
            "block-cursor-background": palette.border,
            "block-cursor-blurred-foreground": palette.text,
            "block-cursor-blurred-background": palette.surface,
            "block-hover-background": palette.surface,
        },
    )


DARK_THEME, LIGHT_THEME = "pagewell-dark", "pagewell-light"
PALETTES = MappingProxyType({DARK_THEME: DARK, LIGHT_THEME: LIGHT})
THEMES = (_theme(DARK_THEME, DARK, True), _theme(LIGHT_THEME, LIGHT, False))

HALF_UPPER = "▀"
"""A cell of two blocks: the foreground is the first, the background the second."""

MARKS = MappingProxyType({USED: "█", SHARED: "▚", PINNED: "▒", CACHED: "░", FREE: "·"})
"""Glyph of a cell in one state, where blocks share cells: two blocks that look alike, the legend, the memory bar."""

TILES = MappingProxyType({USED: "█", SHARED: "▓", PINNED: "▒", CACHED: "░", FREE: "·"})
"""Glyph of one block where a cell or more holds one block."""

UNKNOWN_BLOCK = "?"
"""Glyph of a block in a state that only a newer server knows."""

LETTERS = "abcdefghijkl"
"""Owners where there is no colour: used blocks in lower case, shared ones in upper case."""

STATE_NAMES = MappingProxyType({USED: "used", SHARED: "shared", PINNED: "pinned", CACHED: "cached", FREE: "free"})


@dataclass(frozen=True, slots=True)
class RequestLook:
    mark: str
    label: str
    colour: str
    """A field of Palette."""
    meaning: str = ""


REQUESTS = MappingProxyType({
    "pending": RequestLook("○", "Pending", "muted", "in the queue"),
    "running": RequestLook("●", "Running", "good", "has blocks and takes part in steps; a share tells how far its prefill is"),
    "preempted": RequestLook("◐", "Preempted", "warn", "gave its blocks back and waits to go on"),
    "completed": RequestLook("✓", "Completed", "accent", "ended by itself a few seconds ago"),
    "aborted": RequestLook("✕", "Aborted", "faint", "ended by its client or from here"),
    "failed": RequestLook("!", "Failed", "bad", "ended by an error"),
})  # fmt: skip
UNKNOWN_REQUEST = RequestLook("?", "Unknown", "faint")

MODELS = MappingProxyType({
    "ready": RequestLook("●", "ready", "good"),
    "loading": RequestLook("◐", "loading", "warn"),
    "waiting": RequestLook("◌", "waiting", "warn"),
    "unloaded": RequestLook("○", "unloaded", "muted"),
    "failed": RequestLook("!", "failed", "bad"),
})  # fmt: skip

BRAILLE_BASE = 0x2800
BRAILLE_UP = (0x00, 0x40, 0x44, 0x46, 0x47), (0x00, 0x80, 0xA0, 0xB0, 0xB8)
"""Dots of the left and right half of a cell for a level of 0 to 4, filled from the foot."""
BRAILLE_DOWN = (0x00, 0x01, 0x03, 0x07, 0x47), (0x00, 0x08, 0x18, 0x38, 0xB8)
"""The same, hanging from the top."""
