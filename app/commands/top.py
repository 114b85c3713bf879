"""`pagewell top`: the live dashboard in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from app.commands.params import server_of, server_options


@click.command(short_help="Watch a running server live.")
@server_options
@click.option("--readonly", is_flag=True, help="Show only; offer no action such as abort.")
@click.option("--once", is_flag=True, help="Print one picture of the server and end.")
@click.option("--json", "as_json", is_flag=True, help="With --once: as JSON, for scripts.")
def top(config: Path | None, url: str | None, api_key: str | None, readonly: bool, once: bool, as_json: bool) -> None:
    """Watch a running server: throughput, the block map of its KV cache, its requests."""
    if as_json and not once:
        raise click.UsageError("--json goes with --once.")
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("The dashboard needs a terminal; without one, --once prints one picture of the server.")
    from tui.app import run

    url, api_key = server_of(config, url, api_key)
    sys.exit(run(url, api_key, readonly=readonly, once=once, as_json=as_json))
