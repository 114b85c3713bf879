"""`pagewell bench restart`: what a restart costs a prompt that was known before it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from app.commands.bench.serve import JSON_OPTION
from app.printable import printable


@click.command()
@click.argument("model", required=False)
@click.option("--tokens", "lengths", type=click.IntRange(64), multiple=True, help="Of the prefix. Default: 1024 and 6000.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--threads", type=click.IntRange(1, 1024), help="Of the server. Default: the physical cores.")
@JSON_OPTION
def restart(model: str | None, lengths: tuple[int, ...], rounds: int, threads: int | None, json_path: Path | None) -> None:
    """Start Pagewell on MODEL, ask twice with one long prefix, start it anew and ask again: seconds to the first token.

    Each round has a folder of its own for what the server keeps.
    """
    from app.bench import record
    from app.bench import restart as restarting
    from app.catalog import bundled, library
    from app.machine import this_machine

    path = library.locate(model or bundled.NAME).path.resolve()
    facts = record.circumstances() | {"model": path.name, "rounds": rounds}
    to_stderr = str(json_path) == "-"
    with tempfile.TemporaryDirectory(prefix="pagewell-bench-") as folder:
        times = restarting.measure(
            path, lengths or (1024, 6000), rounds, threads or this_machine().n_cores, Path(folder),
            lambda line: click.echo(printable(line), err=True),
        )  # fmt: skip
    results = [one.result() for one in times]
    click.echo(f"{'prefix':>8}{'cold':>11}{'warm':>11}{'restarted':>11}{'x warm':>9}{'x cold':>9}", err=to_stderr)
    for row in results:
        seconds = "".join(f"{row[name] * 1e3:8.0f} ms" for name in ("cold_s", "warm_s", "restarted_s"))
        ratios = f"{row['restarted_over_warm']:9.2f}{row['restarted_over_cold']:9.3f}"
        click.echo(f"{row['n_tokens']:8,}{seconds}{ratios}", err=to_stderr)
    if json_path is not None:
        record.write(json_path, facts | {"lengths": results})
