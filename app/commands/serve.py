"""`pagewell serve`: load a model and answer on the endpoint and the page."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from app.commands.params import setting_options, settings_from
from app.printable import printable
from app.settings import Settings
from engine.errors import ConfigError, PagewellError
from engine.weights.prefetch import read_ahead

if TYPE_CHECKING:
    from engine.async_engine import AsyncEngine

SHUTDOWN_S = 5
"""Connections that are open after this long are cut when the server stops; everything ends by itself before that."""


@click.command(short_help="Serve a model: endpoint, chat page, statistics.")
@click.argument("model_name", metavar="[MODEL]", required=False)
@setting_options()
def serve(config: Path | None, model_name: str | None, **given: Any) -> None:
    """Serve MODEL: a GGUF file, a folder in Hugging Face layout, a name of `pagewell models list`, or a hub id.

    Without MODEL: the configured one, else the bundled SmolLM2-135M-Instruct.
    """
    settings = settings_from(config, given, model_name)
    from app.catalog import library

    with contextlib.suppress(library.ModelNotDownloaded):
        # A misspelt model shows at once, before anything else that is wrong.
        library.find(settings.serving.model, settings.orchestrator.models_folders)
    with bind(settings.serving.host, settings.serving.port) as sock:
        run(settings, sock)


def run(settings: Settings, sock: socket.socket) -> None:
    """Serve on a bound socket until interrupted."""
    from app.catalog import library

    model = library.locate(settings.serving.model, settings.orchestrator.models_folders)
    click.echo("Starting ...", err=True)
    # What is made from here until the model is loaded stays; to look through it again and again takes a tenth of the start.
    gc.disable()
    threading.Thread(target=read_ahead, args=(model.path,), daemon=True).start()  # while Python imports

    import uvicorn

    from app import log, paths
    from app.asgi import create_app
    from app.db.database import Database
    from app.lifespan import SERVER_STOPPING
    from app.models.pool import ModelPool
    from engine.weights.loader import open_checkpoint

    # What is wrong with these ends the command; the server would outlive it.
    open_checkpoint(model.path)
    if settings.engine.role != "prefill":
        Database(paths.database_path()).try_out()
    log.configure(settings.serving.log_level)
    serving = msgspec.structs.replace(settings.serving, port=sock.getsockname()[1])
    settings = dataclasses.replace(settings, serving=serving)
    pool = ModelPool.from_settings(settings, model)
    host, name = pool.main, pool.main.name
    app = create_app(settings, pool)
    gc.freeze()  # `settle` need not look through what was imported

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                click.echo(printable(f"Listening on {settings.url}, loading {name} ..."), err=True)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.emit(SERVER_STOPPING)
            await super().shutdown(sockets)

    server = Server(
        uvicorn.Config(
            app,
            lifespan="on",
            ws="none",
            log_config=None,
            access_log=settings.development,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_S,
        )
    )

    def give_up(_: PagewellError) -> None:
        server.should_exit = host.info is None  # a model that ran before may come back; one that never did will not

    greeted = False

    def greet(engine: AsyncEngine) -> None:
        nonlocal greeted
        if greeted:
            return  # loaded again after a time of silence
        greeted = True
        click.echo(printable(welcome(settings, name, engine.info.max_model_len)), err=True)

    pool.each_host(lambda each: each.on_ready.append(settle))
    host.on_ready.append(greet)
    host.on_failed += [settle, give_up]
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again after an orderly end
        server.run(sockets=[sock])
    if host.info is None and host.error is not None:
        raise host.error


def settle(_: object) -> None:
    """Collect garbage again, but never look through what is there now; ModelHost.unload takes that back."""
    gc.collect()
    gc.freeze()
    gc.enable()


def welcome(settings: Settings, name: str, window: int) -> str:
    """What a person can do next, once the model is loaded."""
    if settings.engine.role == "prefill":
        return (
            f"\nPagewell computes prompts of {name}, window {window:,} tokens, for decode servers "
            "on this machine:\n\n  pagewell serve --role decode\n\nwith the same model and settings. It has no chat page. Ctrl-C "
            "stops it.\n"
        )
    key = ' -H "Authorization: Bearer $PAGEWELL_API_KEY"' if settings.serving.api_key else ""
    where = "" if settings.serving.port == 8000 and settings.serving.host == "127.0.0.1" else f" --url {settings.url}"
    if where and key:
        where += ' --api-key "$PAGEWELL_API_KEY"'
    body = '{"messages": [{"role": "user", "content": "Hello"}], "stream": true}'
    curl = f"curl -N {settings.url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
    return (
        f"\nPagewell serves {name}, window {window:,} tokens. Three things to do next:\n\n"
        f"  chat in the browser   {settings.url}/\n"
        f"  ask from a shell      {curl}\n"
        f"  watch it work         pagewell top{where}\n\n"
        "Ctrl-C stops it.\n"
    )


def bind(host: str, port: int) -> socket.socket:
    """A socket on this address, taken before anything is loaded. ConfigError when it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ConfigError(f"host {host!r} is no address of this machine: {error.strerror}.", "Use --host 127.0.0.1.") from error
    sock = socket.socket(family, kind, protocol)
    if os.name == "posix":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"Port {port} on {host} is in use: another program, perhaps another Pagewell, listens there.",
                f"Stop it, or choose another port: --port {port + 1}, or --port 0 for any free one. A second Pagewell "
                "also needs a data folder of its own: PAGEWELL_HOME.",
            ) from error
        raise ConfigError(
            f"Cannot listen on {host} port {port}: {error.strerror}.", "Choose another --host or --port."
        ) from error
    return sock
