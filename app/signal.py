"""Signal: wakes everybody who waits for the next change. Waiters look at the state themselves, so none is ever lost."""

from __future__ import annotations

import asyncio
import contextlib


class Signal:
    """A waiter must check its condition and call `wait` without awaiting anything in between."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return at the next `notify`, or after the timeout."""
        event = self._event
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), timeout_s)
