"""The command `pagewell`. Each subcommand lives in app/commands; torch is imported only by those that compute."""

from __future__ import annotations

import sys
from importlib import metadata

import click

from app.commands.bench import bench
from app.commands.chat import chat
from app.commands.doctor import doctor
from app.commands.models import models
from app.commands.serve import serve
from app.commands.settings import settings
from app.commands.top import top
from app.options import did_you_mean
from app.printable import printable
from engine.errors import PagewellError

COMMANDS = (serve, chat, top, models, bench, doctor, settings)


class Commands(click.Group):
    """The group of all subcommands, which suggests the nearest name for a misspelt one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            hint = did_you_mean(args[0], self.commands)
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=Commands, commands=list(COMMANDS), context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(metadata.version("pagewell"), prog_name="pagewell")
def cli() -> None:
    """A local LLM server: OpenAI-compatible endpoint, chat page and live dashboard."""


def main() -> None:
    """Entry point. An error that a person can mend is shown without a traceback and exits with code 2."""
    try:
        cli.main(prog_name="pagewell", standalone_mode=True)
    except PagewellError as error:
        click.secho(printable(f"pagewell: {error.message}"), fg="red", err=True)
        if error.hint:
            click.echo(printable(error.hint), err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
