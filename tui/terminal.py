"""Whether the terminal is light or dark, so that the dashboard does not glare in it."""

from __future__ import annotations

import os
import re
import select
import sys
import time

_QUERY = "\x1b]11;?\x1b\\\x1b[c"
"""OSC 11 asks for the background colour; every terminal answers the device attributes query behind it, so that one that
does not know the first keeps nobody waiting."""
_COLOUR = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
_ATTRIBUTES = re.compile(rb"\x1b\[\?[0-9;]*c")


def has_light_background(timeout_s: float = 0.2) -> bool:
    """Ask the terminal; False (dark) where it does not say."""
    answer = _ask(timeout_s)
    if answer is not None and (match := _COLOUR.search(answer)):
        red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in match.groups())
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")


def _ask(timeout_s: float) -> bytes | None:
    """The terminal's answer; None without a terminal."""
    try:
        import termios
        import tty
    except ImportError:  # Windows
        return None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    answer = b""
    try:
        tty.setcbreak(fd)
        sys.stdout.write(_QUERY)
        sys.stdout.flush()
        deadline = time.monotonic() + timeout_s
        while not _ATTRIBUTES.search(answer):
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            answer += os.read(fd, 256)
    finally:
        termios.tcsetattr(fd, termios.TCSAFLUSH, before)
    return answer
