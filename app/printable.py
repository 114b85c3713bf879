"""Text of strangers (models, servers, files) on a terminal, which would obey the control sequences in it."""

from __future__ import annotations

_CONTROLS = dict.fromkeys(code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t")


def printable(text: str) -> str:
    """`text` without control characters; line breaks and tabs stay. What was an escape sequence shows as plain letters."""
    return text.translate(_CONTROLS)
