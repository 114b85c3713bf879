"""The application over an engine whose runner is fake: real HTTP, real scheduling, no model."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
from litestar import Litestar
from litestar.testing import AsyncTestClient

from app import settings
from app.asgi import create_app
from app.models.host import ModelHost, Progress
from app.models.memory import Memory, reserved_bytes
from app.models.pool import ModelPool
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading import ModelInfo
from engine.text.pieces import Pieces
from engine.text.template import ChatTemplate
from tests.engine.fake_runner import VOCAB_SIZE, ByteTokenizer, FakeRunner

URL = "http://127.0.0.1:8000"
WINDOW = 256
ROOM = 10 << 20
"""Bytes of memory for models."""
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if not loop.last or add_generation_prompt %}\n{% endif %}"
    "{% endfor %}{% if tools %}[{{ tools | length }} tools]{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Tokenizer(ByteTokenizer):
    """The fake runner's bytes, with what the HTTP side asks of a tokenizer besides."""

    fim = None

    def __init__(self) -> None:
        self.encoded: list[int] = []
        """Lengths of the texts that were tokenised."""
        self.pieces = self.pieces_with_special = Pieces(self.token_bytes)

    def encode(self, text: str, **options: bool) -> list[int]:
        self.encoded.append(len(text))
        return super().encode(text, **options)

    def at_least(self, text: str) -> int:
        return len(text) // 16


def info(runner: FakeRunner) -> ModelInfo:
    return ModelInfo(
        name="fake",
        path="fake.gguf",
        family="fake",
        quantization="none",
        dtype="float32",
        max_model_len=runner.max_model_len,
        n_vocab=VOCAB_SIZE,
        n_params=1,
        weights_bytes=1,
        kv_bytes=1 << 20,
        n_blocks=runner.n_blocks,
        block_size=runner.block_size,
        digest="0123456789abcdef",
        memory_note="",
    )


@dataclass
class Server:
    """One application and what lies under it."""

    app: Litestar
    host: ModelHost
    runner: FakeRunner
    pool: ModelPool
    url: str = ""

    @property
    def engine(self) -> AsyncEngine:
        assert self.host.current is not None
        return self.host.current


def make_server(
    *,
    step_s: float = 0.0,
    end_every: int = 0,
    n_blocks: int = 256,
    window: int = WINDOW,
    load: Callable[[Progress], Any] | None = None,
    idle_timeout_s: float = 0.0,
    engine: dict[str, Any] | None = None,
    others: tuple[str, ...] = (),
    together: bool = False,
    **values: Any,
) -> Server:
    """`values` are settings; `engine` are fields of EngineConfig; `load` replaces the loading of the fake model; `others` are
    names of more models, which fit into memory `together` or one at a time."""
    config = EngineConfig(debug_checks=True, **(engine or {}))

    def make_host(name: str, load: Callable[[Progress], Any] | None) -> tuple[ModelHost, FakeRunner]:
        runner = FakeRunner(n_blocks, 4, window, step_s=step_s, end_every=end_every)
        tokenizer: Any = Tokenizer()

        async def load_fake(_: Progress) -> AsyncEngine:
            template = ChatTemplate(TEMPLATE, bos_token="", eos_token="")
            return AsyncEngine(
                lambda emit: EngineCore(config, runner, tokenizer, emit), tokenizer, template, info(runner), config
            )

        def window_in(free: int) -> int:
            return window if together or free >= ROOM else window // 2

        return ModelHost(load or load_fake, name=name, idle_timeout_s=idle_timeout_s, window_in=window_in), runner

    host, runner = make_host("fake", load)
    more = [make_host(name, None)[0] for name in others]
    device: Any = SimpleNamespace(type="cuda")
    memory = Memory(device, free=lambda: ROOM - sum(reserved_bytes(each, device) for each in (host, *more)))
    pool = ModelPool(host, memory=memory)
    for other in more:
        pool._join(other)
    return Server(create_app(settings.make(values), pool), host, runner, pool)


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    """Starts an application in process: `client = await serve(step_s=0.01)`; `client.server` is what lies under it."""
    clients: list[AsyncTestClient[Litestar]] = []

    async def start(*, ready: bool = True, **options: Any) -> AsyncTestClient[Litestar]:
        server = make_server(**options)
        client = AsyncTestClient(server.app, base_url=URL)
        await client.__aenter__()
        client.server = server  # type: ignore[attr-defined]
        clients.append(client)
        while ready and server.host.state == "loading":
            await client.get("/health")
        assert not ready or server.host.state == "ready", server.host.error
        return client

    yield start
    for client in clients:
        await client.__aexit__()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """The application over a fake model that never ends an answer by itself; one for all tests of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEWELL_HOME", str(tmp_path_factory.mktemp("home")))
        server = make_server()
        async with AsyncTestClient(server.app, base_url=URL) as started:
            started.server = server  # type: ignore[attr-defined]
            while server.host.state == "loading":
                await started.get("/health")
            yield started


@pytest.fixture
def live() -> Iterator[Callable[..., Server]]:
    """Starts an application under a real uvicorn on a free port, for what only sockets show."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(**options: Any) -> Server:
        server = make_server(**options)
        config = uvicorn.Config(server.app, port=0, lifespan="on", ws="none", log_level="warning", timeout_graceful_shutdown=1)
        instance = uvicorn.Server(config)
        thread = threading.Thread(target=instance.run)
        thread.start()
        running.append((instance, thread))
        while not (instance.started and server.host.state == "ready"):
            assert thread.is_alive()
            threading.Event().wait(0.01)
        port = instance.servers[0].sockets[0].getsockname()[1]
        server.url = f"http://127.0.0.1:{port}"
        return server

    yield start
    for instance, thread in running:
        instance.should_exit = True
        thread.join(10)
        assert not thread.is_alive()
