"""The glyph and colours of every kind of place in a block map. Pure functions of the tables in tui.look."""

from __future__ import annotations

from functools import lru_cache

from rich.style import Style
from textual.color import Color

from tui.blocks import LEVELS, Place
from tui.feed.model import CACHED, FREE, PINNED, SHARED, USED
from tui.hues import Hues
from tui.look import HALF_UPPER, LETTERS, MARKS, TILES, UNKNOWN_BLOCK, Palette

_UNKNOWN = -1
"""Hue of a block whose owner has none."""


@lru_cache(maxsize=8192)
def colour(palette: Palette, state: int, hue: int, level: int, dimmed: bool) -> Color:
    """A place's colour: the owner's hue, paler where shared, fading with how little of it is full."""
    background = Color.parse(palette.background)
    if state == FREE:
        return background
    if state not in TILES:
        full = Color.parse(palette.muted)
    elif state == CACHED:
        full = Color.parse(palette.cached)
    elif state == PINNED:
        full = Color.parse(palette.accent)
    else:
        full = Color.parse(palette.muted if hue == _UNKNOWN else palette.owners[hue % len(palette.owners)])
        if state == SHARED:
            full = full.blend(Color.parse(palette.text), 0.45)
    shade = background.blend(full, 0.4 + 0.6 * level / LEVELS)
    return background.blend(shade, 0.3) if dimmed else shade


@lru_cache(maxsize=8192)
def _style(foreground: Color, background: Color) -> Style:
    return Style(color=foreground.rich_color, bgcolor=background.rich_color)


def pair(palette: Palette, hues: Hues, first: Place, second: Place, spot: int | None) -> tuple[str, Style]:
    """The cell of two blocks: a mark where both look alike, else half and half."""
    background = Color.parse(palette.background)
    one, two = _place_colour(palette, hues, first, spot), _place_colour(palette, hues, second, spot)
    if first.state != second.state or one != two:
        # Half a cell of cached is as dark as the shading of a whole one.
        one, two = (background.blend(c, 0.45) if p.state == CACHED else c for c, p in ((one, first), (two, second)))
        return HALF_UPPER, _style(one, two)
    if first.state == FREE:
        return MARKS[FREE], _style(Color.parse(palette.faint), background)
    if first.state == SHARED:
        return MARKS[SHARED], _style(one, _place_colour(palette, hues, first._replace(state=USED), spot))
    return MARKS.get(first.state, UNKNOWN_BLOCK), _style(one, background)


def tile(palette: Palette, hues: Hues, place: Place, spot: int | None) -> tuple[str, Style]:
    """The glyph and colour of one block that has a cell or more to itself."""
    background = Color.parse(palette.background)
    if place.state == FREE:
        return TILES[FREE], _style(Color.parse(palette.faint), background)
    return TILES.get(place.state, UNKNOWN_BLOCK), _style(_place_colour(palette, hues, place, spot), background)


def letter(palette: Palette, hues: Hues, place: Place, n_cells: int, spot: int | None) -> tuple[str, Style]:
    """A block without colour: its owner's letter, upper case where it is shared, else the state's glyph."""
    hue = hues.get(place.owner)
    if place.state not in (USED, SHARED) or hue is None:
        return TILES.get(place.state, UNKNOWN_BLOCK) * n_cells, Style(color=palette.faint)
    glyph = LETTERS[hue % len(LETTERS)]
    style = Style(color=palette.text, bold=True) if spot is None or spot == place.owner else Style(color=palette.faint)
    return (glyph.upper() if place.state == SHARED else glyph) * n_cells, style


def _place_colour(palette: Palette, hues: Hues, place: Place, spot: int | None) -> Color:
    hue = hues.get(place.owner)
    dimmed = spot is not None and place.owner != spot
    return colour(palette, place.state, _UNKNOWN if hue is None else hue, place.level, dimmed)
