"""What all widgets share: the palette of the theme in use, and whether there is colour at all."""

from __future__ import annotations

from textual.widget import Widget

from tui.look import DARK, PALETTES, Palette


class Painted(Widget):
    """A widget that paints with the theme's palette."""

    @property
    def palette(self) -> Palette:
        return PALETTES.get(self.app.theme, DARK)

    @property
    def mono(self) -> bool:
        """No colour: meaning must be in the glyphs."""
        return self.app.no_color
