"""RemotePrefill: has long prompts computed by a prefill server of this machine before the engine gets them.

Whatever goes wrong there costs time only: the engine looks for what was handed over, and computes the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, TypeVar

from app.roles.wire import HEARTBEAT_S, Ask, Reply, receive, send
from engine.async_engine import AsyncEngine
from engine.errors import EngineDead
from engine.handover import n_missing
from engine.kv.tiers.shared_folder import SOCKET, kinds
from engine.types import Request

log = logging.getLogger(__name__)

T = TypeVar("T")

LEAST_TOKENS = 256
"""Fewer are computed here sooner than they are asked for."""
SILENCE_S = 5 * HEARTBEAT_S
"""A prefill server that says nothing for so long hangs."""
RENEWALS = 4
"""Times in one lease that it is renewed."""
REST_S = 10.0
"""How long one that hangs is not asked again; one that was late, as long as it was waited for if that is more."""
PARTIAL_REST_S = 60.0
"""And none after one of them could not hand over what it had computed."""

Outcome = Literal["done", "partial", "declined", "late", "failed", "absent"]
"""done: all was handed over. partial: it was said so, but not all of it is there. late: it took longer than a prompt may wait."""


class _Failed(Exception):
    """A prefill server that was there did not do it; the text says why."""


class RemotePrefill:
    """`engine.ahead` of a decode server. folder: of this kind of KV. observe: gets what became of each prompt."""

    def __init__(
        self, engine: AsyncEngine, folder: Path, observe: Callable[[Outcome], None], *, wait_s: float, lease_s: float
    ) -> None:
        self._engine = engine
        self._folder = folder
        self._wait_s = wait_s
        self._lease_s = lease_s
        self._observe = observe
        self._n_asked = 0
        self._resting: dict[Path, tuple[float, str]] = {}
        """Socket of a server that hangs or is late -> until when it is not asked, and why."""
        self._problem = ""

    async def __call__(self, request: Request) -> None:
        """Return once the prompt's KV is there, or will not be."""
        if len(request.prompt_token_ids) < LEAST_TOKENS or request.params.prompt_logprobs is not None:
            return
        with contextlib.suppress(EngineDead):  # who queues the request says so
            n = await n_missing(self._engine, request)
            if n >= LEAST_TOKENS:
                outcome = await self._have_computed(request, n)
                if outcome == "done" and await n_missing(self._engine, request) >= LEAST_TOKENS:
                    outcome = "partial"
                    why = "Not all that a prefill server hands over arrives; its log, or --kv-shared-space, says why"
                    for path in self._paths():  # else each prompt would be computed there for nothing, and here again
                        self._resting[path] = time.monotonic() + PARTIAL_REST_S, why
                    self._say(why)
                elif outcome == "done":
                    self._say("")
                self._observe(outcome)

    async def _have_computed(self, request: Request, n: int) -> Outcome:
        renewing = asyncio.create_task(self._renew(request))
        try:
            return await self._ask_anyone(request, n)
        except _Failed as error:
            self._say(str(error))
            return "failed"
        finally:
            renewing.cancel()

    async def _renew(self, request: Request) -> None:
        """Looking for what was handed over so far renews its leases, which may be shorter than the whole prompt takes."""
        with contextlib.suppress(EngineDead):
            while True:
                await asyncio.sleep(self._lease_s / RENEWALS)
                await n_missing(self._engine, request)

    async def _ask_anyone(self, request: Request, n: int) -> Outcome:
        """Ask the first server that answers, another one first each time."""
        paths = [path for path in self._paths() if path not in self._rest()]
        self._n_asked += 1
        first = self._n_asked % max(1, len(paths))
        for path in paths[first:] + paths[:first]:
            try:
                reader, writer = await asyncio.open_unix_connection(path)
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)  # its process has died
                continue
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _Failed(f"The prefill server at {path} cannot be reached ({error})") from error
            try:
                async with asyncio.timeout(self._wait_s):
                    return await self._ask(path, reader, writer, request, n)
            except TimeoutError:
                why = f"The prefill server takes longer than the {self._wait_s:g} s of --prefill-wait"
                self._resting[path] = time.monotonic() + max(REST_S, self._wait_s), why  # the next prompts would wait as long
                self._say(why)
                return "late"
            finally:
                writer.close()
        self._say(self._nobody())
        return "absent"

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob(f"*{SOCKET}"))

    async def _ask(
        self, path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: Request, n: int
    ) -> Outcome:
        reply = Reply("computing")
        try:
            ask = Ask(request.prompt_token_ids, n, request.cache_salt, request.priority)
            await self._in_time(path, send(writer, ask))
            while reply.state == "computing":
                reply = await self._in_time(path, receive(reader, Reply))
        except (OSError, EOFError) as error:
            raise _Failed("The prefill server has gone away") from error
        except ValueError as error:
            raise _Failed(f"What the prefill server says is no reply ({error}); is it of the same version?") from error
        if reply.state == "failed":
            raise _Failed(f"The prefill server could not compute a prompt: {reply.why}")
        return "declined" if reply.state == "declined" else "done"

    async def _in_time(self, path: Path, exchange: Awaitable[T]) -> T:
        """A message to or from a server; a long prompt is more than the system takes before the server reads it."""
        try:
            async with asyncio.timeout(SILENCE_S) as limit:
                return await exchange
        except TimeoutError as error:
            if not limit.expired():
                raise
            why = f"The prefill server has said nothing for {SILENCE_S:g} s"
            self._resting[path] = time.monotonic() + REST_S, why
            raise _Failed(why) from error

    def _rest(self) -> dict[Path, str]:
        """Those that are left alone now, and why."""
        now = time.monotonic()
        return {path: why for path, (until, why) in self._resting.items() if until > now}

    def _nobody(self) -> str:
        if resting := self._rest():
            return next(iter(resting.values()))
        others = [kind for kind in kinds(self._folder.parent) if kind != self._folder and any(kind.glob(f"*{SOCKET}"))]
        if others:
            return "The prefill server that runs here has another model, version, KV format or --block-size, so it cannot help"
        return "No prefill server runs; start one with the same model and settings: pagewell serve --role prefill --port 8001"

    def _say(self, problem: str) -> None:
        """Once, until something else is wrong."""
        if problem and problem != self._problem:
            log.warning("%s. Long prompts are computed here meanwhile.", problem)
        elif self._problem and not problem:
            log.info("A prefill server computes long prompts again")
        self._problem = problem
