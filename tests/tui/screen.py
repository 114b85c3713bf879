"""The dashboard under Pilot, and its screen as lines of text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from tui.dashboard import Dashboard
from tui.feed.client import FeedClient


@asynccontextmanager
async def dashboard(url: str, size: tuple[int, int] = (120, 40), **options: bool) -> AsyncIterator[Pilot[None]]:
    """The dashboard of the server at `url`, running headless."""
    app = Dashboard(FeedClient(url), **options)
    async with app.run_test(size=size, notifications=True) as pilot:
        yield pilot


def lines(pilot: Pilot[None]) -> list[str]:
    """What the screen shows, row by row, without colours."""
    return [strip.text for strip in pilot.app.screen._compositor.render_strips()]


def text(pilot: Pilot[None]) -> str:
    return "\n".join(line.rstrip() for line in lines(pilot))


async def until(pilot: Pilot[None], condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Let the dashboard run until the condition holds; AssertionError with the screen's text otherwise."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, text(pilot)
        await asyncio.sleep(0.02)
    await pilot.pause()


async def until_text(pilot: Pilot[None], *wanted: str, seconds: float = 10.0) -> None:
    await until(pilot, lambda: all(part in text(pilot) for part in wanted), seconds)


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys and let the screen settle."""
    await pilot.press(*keys)
    await pilot.pause()
    await pilot.pause()
