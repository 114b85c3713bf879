"""`pagewell models`: which models there are, and their coming and going."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from app import paths, settings
from app.catalog import access, disk, library, shelf
from app.commands.params import config_option
from app.options import format_bytes
from app.printable import printable

if TYPE_CHECKING:
    from app.catalog.advice import Row

AS_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON, for scripts.")


@click.group()
def models() -> None:
    """List, download, inspect and delete models."""


@models.command("list")
@config_option
@AS_JSON
def list_models(config: Path | None, as_json: bool) -> None:
    """Models on this machine, whoever put them there, and those that can be pulled by a short name."""
    here = library.local(settings.load(config=config).orchestrator.models_folders)
    by_name = {model.name.lower(): model for model in here}
    rows: list[tuple[str, str, str, disk.LocalModel | None]] = []
    for entry in shelf.SHELF:
        rows.append((entry.name, entry.size, entry.about, by_name.pop(entry.name, None)))
    rows += [(model.name, "", f"of {model.origin}" if model.origin else str(model.path), model) for model in by_name.values()]
    if as_json:
        click.echo(json.dumps([{"name": r[0], "parameters": r[1], "about": r[2], **_facts(r[3])} for r in rows], indent=2))
        return
    width = max(len(row[0]) for row in rows)
    click.secho(f"{'NAME':{width}}  {'SIZE':>5}  {'ON DISK':>9}  ABOUT", bold=True)
    for name, size, about, model in rows:
        click.echo(printable(f"{name:{width}}  {size:>5}  {format_bytes(model.n_bytes) if model else '-':>9}  {about}"))
    click.secho("\nAny other: pagewell models pull OWNER/NAME, or OWNER/NAME:Q4_K_M for one quantisation.", dim=True)


@models.command()
@click.argument("name")
@config_option
@click.option("-y", "--yes", is_flag=True, help="Take what is best here, without asking.")
def pull(name: str, config: Path | None, yes: bool) -> None:
    """Download NAME (a short name or a hub id such as OWNER/NAME:Q4_K_M); after a download that broke off, what is missing.

    Without a quantisation the repository's choices are shown, with what each is worth on this machine, and one is to be chosen;
    without a terminal the best that fits is taken.
    """
    from app.catalog import pulling

    def choose(rows: Sequence[Row], best: Row | None) -> Row | None:
        for line in table(rows, best):
            click.echo(printable(line))
        if yes or len(rows) == 1 or not sys.stdin.isatty():
            return best
        by_number = {str(place): row for place, row in enumerate(rows, 1) if row.choice.is_loaded}
        default = next((number for number, row in by_number.items() if row is best), None)
        answer = click.prompt("Which one", type=click.Choice(list(by_number)), default=default, show_choices=False)
        return by_number[answer]

    model = pulling.pull(name, choose, place=pulling.Place(settings.load(config=config).engine_for))
    where = f"{model.path} ({format_bytes(model.n_bytes)})"
    click.echo(printable(f"{model.name} is in {where}. Serve it: pagewell serve {model.name}"))


def table(rows: Sequence[Row], best: Row | None) -> list[str]:
    """A repository's choices for a person; the best here has a star."""
    from app.catalog import advice

    head = ("", "QUANT", "SIZE", "BITS", "QUALITY", "SPEED", "WINDOW")
    cells = [head]
    for place, row in enumerate(rows, 1):
        bits, kept, speed, window = advice.words(row)
        star = "*" if row is best else " "
        cells.append(
            (f"{place:2}{star}", row.choice.quant or "whole", format_bytes(row.choice.n_bytes), bits, kept, speed, window)
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]


@models.command()
def login() -> None:
    """Give the hub's token, for models that are gated or private. It is asked for, or read from a pipe.

    It is kept where huggingface_hub keeps it, in a file that only you can read.
    """
    token = click.prompt("Token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
    name = access.log_in(token)
    click.echo(printable(f"The hub knows you as {name}. The token is in {access.token_path()}."))


@models.command()
def logout() -> None:
    """Forget the hub's token."""
    click.echo("The token is gone." if access.log_out() else "There was no token.")


@models.command()
@click.argument("name")
@config_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(name: str, config: Path | None, yes: bool) -> None:
    """Delete NAME from Pagewell's folder. Models of other programs are theirs to delete."""
    model = library.find(name, settings.load(config=config).orchestrator.models_folders)
    disk.require_own(model)
    if not yes:
        click.confirm(printable(f"Delete {model.path} ({format_bytes(model.n_bytes)})?"), abort=True)
    freed = disk.remove(model)
    click.echo(printable(f"Deleted {model.name}; {format_bytes(freed)} are free again."))
    folder = model.path if model.kind == "safetensors" else model.path.parent
    if folder != paths.models_dir() and folder.exists():
        click.echo(printable(f"{folder} stays: there are other files in it."))


@models.command()
@click.argument("name")
@config_option
@AS_JSON
def show(name: str, config: Path | None, as_json: bool) -> None:
    """What NAME is, and what of it fits on this machine: family, number formats, window, KV cache."""
    in_force = settings.load(config=config)
    model = library.find(name, in_force.orchestrator.models_folders)
    from app.catalog.inspect import describe

    facts: dict[str, Any] = {"name": model.name, **_facts(model), **describe(model, in_force.engine_for(*disk.names_of(model)))}
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for key, value in facts.items():
        if value not in (None, "", {}):
            click.echo(printable(f"{key.removeprefix('n_').replace('_', ' '):{width}}  {_shown(key, value)}"))


def _shown(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(key, each)}" for name, each in value.items())
    if isinstance(value, list):
        return "; ".join(_shown(key, each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and "bytes" in key and "token" not in key:
        return format_bytes(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _facts(model: disk.LocalModel | None) -> dict[str, object]:
    if model is None:
        return {"path": None, "kind": None, "n_bytes": None, "origin": None}
    return {
        "path": str(model.path),
        "kind": model.kind,
        "n_bytes": model.n_bytes,
        "origin": model.origin or ("Pagewell" if model.managed else None),
    }
