"""Text can be read: every pair of text and ground that the style sheets use reaches WCAG AA, in light and dark."""

from __future__ import annotations

import re

import pytest

from ui.render import STATIC

COLOURS = {
    name: pair
    for sheet in ("base.css", "code.css")
    for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", (STATIC / sheet).read_text())
}
COLOURS["code-ground"] = re.search(r"background: light-dark\((#\w{6}), (#\w{6})\)", (STATIC / "code.css").read_text()).groups()

PAIRS = [
    *((text, ground) for text in ("text", "muted") for ground in ("ground", "raised", "side", "soft", "code-ground")),
    *((code, "code-ground") for code in ("keyword", "string", "name", "number", "remark", "accent", "trouble")),
    *(("accent", ground) for ground in ("ground", "raised", "side")),
    ("on-accent", "accent"),
    ("ground", "text"),
    ("ground", "trouble"),
    ("trouble", "ground"),
    ("trouble", "trouble-ground"),
    ("text", "trouble-ground"),
]


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_contrast_is_at_least_four_and_a_half(text: str, ground: str, scheme: int) -> None:
    light, dark = sorted((luminance(COLOURS[text][scheme]), luminance(COLOURS[ground][scheme])), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5
