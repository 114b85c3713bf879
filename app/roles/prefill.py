"""PrefillServer: computes prompts for the decode servers of this machine, which come to a socket in the shared folder."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path

from app.models.host import ModelHost
from app.roles.wire import HEARTBEAT_S, Ask, Reply, receive, send
from engine.async_engine import AsyncEngine
from engine.errors import PagewellError
from engine.handover import hand_over, n_missing
from engine.kv.tiers.shared_folder import KIND_DIGITS, PARTIAL, SOCKET, SharedFolder
from engine.types import Request, SamplingParams

log = logging.getLogger(__name__)

DECLINED_ABOVE = 2
"""Times as much to compute as the decode server has: one that was started again would keep it waiting for what it knows."""


class PrefillServer:
    """Listens from the first load on, also while the model is unloaded; who asks then waits for the load."""

    def __init__(self, host: ModelHost, base: Path | None) -> None:
        self._host = host
        self._base = base
        self._folder: SharedFolder | None = None
        self._kind = ""
        self._path: Path | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """Prompts under way, and the start of listening."""

    def attach(self, engine: AsyncEngine) -> None:
        """Listen for those who have the same model and settings as this engine."""
        if engine.info.kv_kind != self._kind:
            self._kind = engine.info.kv_kind
            self._keep(asyncio.create_task(self._listen(self._kind), name="prefill-listen"))

    async def close(self) -> None:
        """Take no more prompts, and end those under way: who asked computes them."""
        self._stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._folder is not None:
            self._folder.release()
            self._folder = None

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _listen(self, kind: str) -> None:
        self._stop_listening()
        if self._folder is None:
            self._folder = SharedFolder(self._base)
        name = self._folder.kind(kind[:KIND_DIGITS]) / f"{os.getpid()}-{os.urandom(2).hex()}"
        path = name.with_suffix(SOCKET)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # It listens before it has its name: a socket there that refuses is one whose process has died.
            sock.bind(str(name.with_suffix(PARTIAL)))
            os.chmod(name.with_suffix(PARTIAL), 0o600)
            self._server = await asyncio.start_unix_server(self._serve, sock=sock)
            name.with_suffix(PARTIAL).rename(path)
        except OSError as error:
            sock.close()
            log.error("Decode servers cannot reach this prefill server: %s cannot be opened: %s", path, error)
            return
        self._path = path
        log.info("Computes prompts for decode servers of the same model and settings on this machine")

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._keep(task)
        try:
            ask = await receive(reader, Ask)
            computing = asyncio.create_task(self._compute(ask))
            leaving = asyncio.create_task(reader.read(1))
            try:
                while not computing.done():
                    await asyncio.wait({computing, leaving}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                    if leaving.done():
                        return
                    if not computing.done():
                        await send(writer, Reply("computing"))
                await send(writer, computing.result())
            finally:
                computing.cancel()
                leaving.cancel()
                await asyncio.gather(computing, leaving, return_exceptions=True)
        except (OSError, EOFError):
            pass  # who asked has left, and needs no answer
        except ValueError as error:
            log.warning("A decode server asked for something that is no prompt (%s); is it of the same version?", error)
        finally:
            writer.close()

    async def _compute(self, ask: Ask) -> Reply:
        request = Request("prefill", ask.token_ids, SamplingParams(), cache_salt=ask.cache_salt, priority=ask.priority)
        try:
            async with self._host.use() as engine:
                if await n_missing(engine, request) > DECLINED_ABOVE * ask.n_missing:
                    return Reply("declined")
                await hand_over(engine, request, len(ask.token_ids) - ask.n_missing)
        except PagewellError as error:
            return Reply("failed", error.message)
        except Exception as error:
            log.exception("Handing a prompt over failed")
            return Reply("failed", f"{type(error).__name__}: {error}")
        return Reply("done")
