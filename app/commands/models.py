"""`pagewell models`: which models there are, and their coming and going."""

from __future__ import annotations

import json

import click

from app import paths
from app.catalog import disk, library, shelf
from app.options import format_bytes
from app.printable import printable


@click.group()
def models() -> None:
    """List, download, inspect and delete models."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for scripts.")
def list_models(as_json: bool) -> None:
    """Models on disk, and those that can be pulled by a short name; others come by their hub id."""
    on_disk = disk.installed()
    by_path = {model.path: model for model in on_disk}
    rows = []
    for entry in shelf.SHELF:
        model = library.on_disk(entry.name, on_disk)
        if model is not None:
            by_path.pop(model.path)
        rows.append((entry.name, entry.size, format_bytes(model.n_bytes) if model else "", entry.about, model))
    rows += [(model.name, "", format_bytes(model.n_bytes), str(model.path), model) for model in by_path.values()]
    if as_json:
        click.echo(json.dumps([{"name": r[0], "parameters": r[1], "about": r[3], **_facts(r[4])} for r in rows], indent=2))
        return
    width = max(len(row[0]) for row in rows)
    click.secho(f"{'NAME':{width}}  {'SIZE':>5}  {'ON DISK':>9}  ABOUT", bold=True)
    for name, size, n_bytes, about, _ in rows:
        click.echo(printable(f"{name:{width}}  {size:>5}  {n_bytes or '-':>9}  {about}"))
    click.secho("\nAny other: pagewell models pull OWNER/NAME, or OWNER/NAME:Q4_K_M for one quantisation.", dim=True)


@models.command()
@click.argument("name")
def pull(name: str) -> None:
    """Download NAME (a short name or a hub id such as OWNER/NAME:Q4_K_M); after a download that broke off, what is missing."""
    model = library.pull(name)
    where = f"{model.path} ({format_bytes(model.n_bytes)})"
    click.echo(printable(f"{model.name} is in {where}. Serve it: pagewell serve {name}"))


@models.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(name: str, yes: bool) -> None:
    """Delete NAME from Pagewell's folder."""
    model = library.find(name)
    if not yes:
        click.confirm(printable(f"Delete {model.path} ({format_bytes(model.n_bytes)})?"), abort=True)
    disk.remove(model)
    click.echo(printable(f"Deleted {model.name}."))
    folder = model.path if model.kind == "safetensors" else model.path.parent
    if folder != paths.models_dir() and folder.exists():
        click.echo(printable(f"{folder} stays: there are other files in it."))


@models.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="As JSON, for scripts.")
def show(name: str, as_json: bool) -> None:
    """What NAME is: file, size, architecture, window, number formats."""
    model = library.find(name)
    from app.catalog.inspect import describe

    facts = {"name": model.name, **_facts(model), **describe(model)}
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    facts = {"size" if key == "n_bytes" else key: value for key, value in facts.items()}
    width = max(map(len, facts))
    for key, value in facts.items():
        click.echo(printable(f"{key.replace('_', ' '):{width}}  {format_bytes(value) if key == 'size' else value}"))


def _facts(model: disk.LocalModel | None) -> dict[str, object]:
    if model is None:
        return {"path": None, "kind": None, "n_bytes": None}
    return {"path": str(model.path), "kind": model.kind, "n_bytes": model.n_bytes}
