"""ModelPool: every model that this server may load, by the names that clients use."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import torch
from msgspec import structs

from app import paths
from app.catalog import library
from app.catalog.disk import LocalModel, names_of, pass_over
from app.errors import UnknownModel
from app.models.host import ModelHost, Progress
from app.models.memory import Memory
from app.models.predictor import Predictor
from app.models.room import Room
from app.options import near
from app.settings import Settings
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner.prediction import device_of

log = logging.getLogger(__name__)

FRESH_S = 10.0
"""What lies on disk is looked through again for a list that is older."""


class ModelPool:
    """Whoever needs a model's engine asks here. The main model is the one that the server was started with; a request that
    names none gets it."""

    def __init__(
        self,
        main: ModelHost,
        *,
        find: Callable[[], list[LocalModel]] | None = None,
        make: Callable[[LocalModel], ModelHost] | None = None,
        aliases: dict[str, str] | None = None,
        tables: Iterable[str] = (),
        memory: Memory | None = None,
    ) -> None:
        """find: the models on disk, blocking; make: the host of one. None: there is no other than the main one. aliases:
        {name that clients see: model's own}. tables: names of models of which the configuration says something of their own."""
        self.main = main
        self.on_host: list[Callable[[ModelHost], None]] = []
        """Called on the event loop with each host that joins, and by `each_host` with those that are here."""
        self.room = Room(lambda: self.hosts, memory or Memory(torch.device("cpu")))
        self._find = find
        self._make = make
        self._aliases = {alias.lower(): model.lower() for alias, model in (aliases or {}).items()}
        self._tables = list(tables)
        """Of which it is not known yet that no model has the name."""
        self._hosts: dict[str, ModelHost] = {}
        self._looking = asyncio.Lock()
        self._looked_s = float("-inf")
        self._join(main)

    @classmethod
    def from_settings(cls, settings: Settings, model: LocalModel) -> ModelPool:
        """The pool of a server of `model`, a GGUF file or a folder."""
        orchestrator, aliases = settings.orchestrator, settings.aliases
        memory = Memory(device_of(settings.engine))
        pool: ModelPool

        def make(of: LocalModel) -> ModelHost:
            name = next((alias for alias, model in aliases.items() if model.lower() == of.name.lower()), of.name)
            return host_of(of, name)

        def host_of(of: LocalModel, name: str, *, is_main: bool = False) -> ModelHost:
            names = (name, *names_of(of))
            config = config_of(settings, *names)
            # What was said of the server's own model, or of all, is not to keep others from running.
            of_all = not is_main and "quantization" not in settings.of_model(*names)
            predictor = Predictor(of.path, config, caps_window=not is_main, quantizes_dense_only=of_all)

            async def load(progress: Progress) -> AsyncEngine:
                used = await asyncio.to_thread(lambda: predictor.config)
                promised = memory.promised_bytes(pool.room.loaded)
                return await AsyncEngine.load(of.path, used, progress, promised_bytes=promised)

            return ModelHost(
                load,
                name=name,
                model=of,
                config=config,
                idle_timeout_s=orchestrator.idle_timeout,
                max_waiting=config.max_waiting,
                window_in=predictor.window_in,
            )

        main = host_of(model, settings.serving.served_model_name or make(model).name, is_main=True)
        # A prefill and a decode server are of one model: what they hand over is of no use to another.
        alone = not orchestrator.switch_models or settings.engine.role != "both"
        find = None if alone else (lambda: library.local(orchestrator.models_folders))
        pool = cls(main, find=find, make=make, aliases=aliases, tables=settings.models, memory=memory)
        return pool

    @property
    def hosts(self) -> list[ModelHost]:
        """All models, the main one first, then by name."""
        return list(self._hosts.values())

    def each_host(self, callback: Callable[[ModelHost], None]) -> None:
        """Call it with every host there is, and with each that joins later."""
        self.on_host.append(callback)
        for host in self.hosts:
            callback(host)

    def get(self, name: str | None) -> ModelHost:
        """The model of this name, spelt in any case; without a name the main one. Raises UnknownModel that tells near names."""
        if not name:
            return self.main
        lower = name.lower()
        host = self._hosts.get(lower) or self._by_own_name(self._aliases.get(lower, lower))
        if host is None:
            names = [host.name for host in self.hosts]
            close = near(name, names)[:3] or names[:5]
            more = f", and {len(names) - len(close)} more" if len(names) > len(close) else ""
            raise UnknownModel(
                f"The model `{name}` does not exist here.", f"This server has {', '.join(f'`{n}`' for n in close)}{more}."
            )
        return host

    async def find(self, name: str | None) -> ModelHost:
        """As `get`, also for a model that came to this machine since. Raises UnknownModel."""
        try:
            return self.get(name)
        except UnknownModel:
            if self._find is None:
                raise
            await self.look(fresh_s=1.0)
            return self.get(name)

    @asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[AsyncEngine]:
        """The engine of a model, which is loaded first where it has to be; see ModelHost.use. Raises UnknownModel."""
        host = await self.find(name)
        async with host.use() as engine:
            yield engine

    async def look(self, fresh_s: float = FRESH_S) -> None:
        """Look through the disk, unless that was done less than `fresh_s` ago."""
        if self._find is None or self._make is None:
            return
        async with self._looking:
            if time.monotonic() - self._looked_s < fresh_s:
                return
            try:
                found, here = await asyncio.to_thread(_by_place, self._find, self.hosts)
            except Exception as error:  # those that are known answer nevertheless
                log.warning("The models on disk could not be listed: %s", error, exc_info=not isinstance(error, OSError))
                return
            finally:
                self._looked_s = time.monotonic()
            self._update(found, here, self._make)
            for alias in [alias for alias, model in self._aliases.items() if not self._by_own_name(model)]:
                log.warning("model_aliases has %s=%s, but there is no such model on disk", alias, self._aliases.pop(alias))
            for name in [name for name in self._tables if not self._is_here(name.lower())]:
                log.warning('The configuration has [models."%s"], but there is no such model on disk', name)
                self._tables.remove(name)

    def _update(
        self, found: dict[Path, LocalModel], here: dict[Path, ModelHost], make: Callable[[LocalModel], ModelHost]
    ) -> None:
        """Take in what is new, and leave out what is gone and not in memory."""
        for path, model in found.items():
            if path in here:
                continue
            try:
                self._join(make(model))
            except ConfigError as error:
                pass_over(path, str(error))
        for path, host in here.items():
            if path not in found and host is not self.main and host.state in ("unloaded", "failed"):
                del self._hosts[host.name.lower()]
        others = sorted((host for host in self.hosts if host is not self.main), key=lambda host: host.name.lower())
        self._hosts = {host.name.lower(): host for host in (self.main, *others)}

    def _join(self, host: ModelHost) -> None:
        name, n = host.name, 2
        while host.name.lower() in self._hosts:
            host.name, n = f"{name}-{n}", n + 1
        if host.name != name:
            log.warning("Another model is called %s: the one in %s is %s", name, host.model and host.model.path, host.name)
        self._hosts[host.name.lower()] = host
        host.turn = self.room.turn
        if host is not self.main:
            host.state = "unloaded"
        for callback in self.on_host:
            callback(host)

    def _is_here(self, name: str) -> bool:
        """Whether any model goes by this name or alias, alone or among others."""
        name = self._aliases.get(name, name)
        return any(name == host.name.lower() or (host.model and name in names_of(host.model)) for host in self.hosts)

    def _by_own_name(self, name: str) -> ModelHost | None:
        """By the name that the model has on disk, with its quantisation or without, and without the program's that it comes from,
        where it is the only one."""
        own = {host: host.model for host in self.hosts if host.model is not None}
        whole = [host for host, model in own.items() if name in names_of(replace(model, origin=""))]
        short = [host for host, model in own.items() if name in names_of(model)]
        return whole[0] if whole else short[0] if len(short) == 1 else None

    def at(self, path: Path) -> ModelHost | None:
        """The model that lies there."""
        return next((host for host in self.hosts if host.model is not None and host.model.path == path), None)

    async def start(self) -> None:
        """Begin to load the main model; returns at once."""
        await self.main.start()

    async def drain(self, grace_s: float) -> None:
        """The server is stopping; see ModelHost.drain."""
        await asyncio.gather(*(host.drain(grace_s) for host in self.hosts))

    async def close(self) -> None:
        """End all loads and engines, for good."""
        await asyncio.gather(*(host.close() for host in self.hosts))


def _by_place(
    find: Callable[[], list[LocalModel]], hosts: list[ModelHost]
) -> tuple[dict[Path, LocalModel], dict[Path, ModelHost]]:
    """What is found, and the hosts, each by where it really lies. Blocks: disks may be slow, or asleep."""
    found = {model.path.resolve(): model for model in find()}
    return found, {host.model.path.resolve(): host for host in hosts if host.model is not None}


def config_of(settings: Settings, *names: str) -> EngineConfig:
    """What a model of these names is loaded with: the settings in force, and those of its own."""
    kv = settings.engine.kv_disk_folder or str(paths.cache_dir() / "kv")
    weights = settings.engine.weights_disk_folder or str(paths.cache_dir() / "weights")
    return structs.replace(settings.engine_for(*names), kv_disk_folder=kv, weights_disk_folder=weights)
