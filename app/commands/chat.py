"""`pagewell chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app.commands.params import KEY_HELP, address_of, setting_options, settings_from
from app.printable import printable
from app.settings import Settings
from engine.errors import PagewellError

if TYPE_CHECKING:
    from app.commands.answering import Answerer, Sampling

HELP = "/clear forgets the conversation, /system TEXT sets the system prompt, /retry answers again, /exit ends (or Ctrl-D)"
NOT_HERE = frozenset({"api_key", "host", "port", "allowed_hosts", "cors_origins", "served_model_name", "log_level"})
NOT_HERE |= {"env", "idle_timeout", "permission_mode", "max_waiting"}
"""Settings of a server; chat offers the engine's, for a model that it loads itself."""


@click.command(short_help="Talk with a model in the terminal.")
@click.argument("model_name", metavar="[MODEL]", required=False)
@click.option("--url", help="Where a server may run. Default: the configured host and port.")
@click.option("--api-key", help=KEY_HELP)
@click.option("-m", "--message", help="Ask this, print the answer and end. A pipe into the command does the same.")
@click.option("--system", default="", help="System prompt.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="0 always takes the likeliest token.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Draw from the likeliest tokens of this share.")
@click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of an answer.")
@setting_options(without=NOT_HERE)
def chat(
    config: Path | None,
    model_name: str | None,
    url: str | None,
    api_key: str | None,
    message: str | None,
    system: str,
    temperature: float | None,
    top_p: float | None,
    max_tokens: int | None,
    **given: Any,
) -> None:
    """Talk with a model in the terminal.

    A running server answers, if there is one (and it serves MODEL, if that is given); else MODEL is loaded here.
    Ctrl-C stops an answer and keeps what was said.
    """
    from app.commands.answering import Sampling

    settings = settings_from(config, {**given, "api_key": api_key}, model_name)
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.read().strip()
        if not message:
            raise click.UsageError("There is no message: give one with -m, or through a pipe.")
    sampling = Sampling(temperature, top_p, max_tokens, given.get("seed"))
    address = address_of(settings, url, api_key)
    model = model_name or given.get("model")
    with asyncio.Runner() as runner, _answerer(runner, settings, address, model, must_be_server=bool(url)) as answerer:
        talk = Conversation(runner, answerer, sampling, system)
        if message is not None:
            if not talk.ask(message):
                sys.exit(130)
        else:
            talk.loop()


@contextlib.contextmanager
def _answerer(
    runner: asyncio.Runner, settings: Settings, address: tuple[str, str | None], model: str | None, *, must_be_server: bool
) -> Iterator[Answerer]:
    """The server at `address` (base URL, key) if one answers there, else, unless it must be that server, the model itself."""
    from app.client import NoServer, served_names
    from app.commands.answering import LocalAnswerer, ServerAnswerer

    base, api_key = address
    try:
        names = runner.run(served_names(base, api_key))
    except NoServer:
        if must_be_server:
            raise
        names = None
    if must_be_server and names is None:
        raise PagewellError(f"No server answers at {base}.", "Start one with `pagewell serve`, or leave out --url.")
    if names and (model is None or model in names):
        answerer: Answerer = ServerAnswerer(base, api_key, model or names[0])
    elif must_be_server:
        raise PagewellError(f"The server at {base} does not serve {model}.", printable(f"It serves {', '.join(names or [])}."))
    else:
        from app.catalog import disk, library

        model = library.locate(settings.serving.model, settings.orchestrator.models_folders)
        answerer = runner.run(LocalAnswerer.load(model, settings.engine_for(*disk.names_of(model))))
    try:
        yield answerer
    finally:
        runner.run(answerer.close())


class Conversation:
    """Messages so far, and the loop of questions and answers."""

    def __init__(self, runner: asyncio.Runner, answerer: Answerer, sampling: Sampling, system: str) -> None:
        self.messages: list[dict[str, str]] = []
        self._runner = runner
        self._answerer = answerer
        self._sampling = sampling
        self._set_system(system)

    def loop(self) -> None:
        """Read and answer until the person ends it."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (importing it gives input() a history and line editing)
        click.secho(printable(f"{self._answerer.name}. {HELP}"), dim=True)
        while True:
            try:
                text = _read()
            except KeyboardInterrupt:
                click.echo()
                continue
            except EOFError:
                click.echo()
                return
            command, _, rest = text.partition(" ")
            if command == "/exit":
                return
            if command == "/clear":
                self.messages = [m for m in self.messages if m["role"] == "system"]
            elif command == "/system":
                self._set_system(rest.strip())
            elif command == "/retry":
                self._retry()
            elif command == "/help":
                click.secho(HELP, dim=True)
            elif command.startswith("/"):
                click.secho(printable(f"{command} is unknown. {HELP}"), dim=True)
            elif text.strip():
                self._try(text)

    def ask(self, text: str) -> bool:
        """Answer one message; what was said before an interruption stays. False when it was interrupted."""
        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []

        async def answer() -> None:
            async with contextlib.aclosing(self._answerer.stream(self.messages, self._sampling)) as stream:
                async for piece in stream:
                    pieces.append(piece)
                    click.echo(printable(piece), nl=False)

        interrupted = False
        try:
            self._runner.run(answer())
        except KeyboardInterrupt:
            interrupted = True
        except BaseException:
            self.messages.pop()
            if pieces:
                click.echo()
            raise
        click.echo()
        self.messages.append({"role": "assistant", "content": "".join(pieces)})
        if sys.stdout.isatty():
            click.secho("stopped" if interrupted else str(self._answerer.tally), dim=True)
        return not interrupted

    def _try(self, text: str) -> bool:
        """Answer one message; False when that failed, which is told."""
        try:
            self.ask(text)
        except PagewellError as error:
            click.secho(printable(str(error)), fg="red", err=True)
            return False
        return True

    def _retry(self) -> None:
        if self.messages and self.messages[-1]["role"] == "assistant":
            before = list(self.messages)
            self.messages.pop()
            if not self._try(self.messages.pop()["content"]):
                self.messages = before

    def _set_system(self, text: str) -> None:
        self.messages = [m for m in self.messages if m["role"] != "system"]
        if text:
            self.messages.insert(0, {"role": "system", "content": text})


def _read() -> str:
    """One message; a line that ends in a backslash goes on in the next."""
    lines = [input("> ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(input(". "))
    return "\n".join(lines)
