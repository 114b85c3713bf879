"""`pagewell bench limits`: what this machine can do at most."""

from __future__ import annotations

from pathlib import Path

import click

from app.commands.bench.serve import JSON_OPTION


@click.command()
@click.option(
    "--threads", type=click.IntRange(1, 1024), help="Most threads. Default: the physical cores, and all hardware threads."
)
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True, help="Runs of each, of which the median counts.")
@JSON_OPTION
def limits(threads: int | None, runs: int, json_path: Path | None) -> None:
    """Measure memory bandwidth and peaks of arithmetic, by one thread and by all.

    A decoded token reads all weights once, so bandwidth over their size limits a single stream; prefill and batches are limited
    by multiplications.
    """
    from app.bench import limits as machine
    from app.bench import record
    from app.machine import this_machine

    facts = record.circumstances()
    here = this_machine()
    counts = tuple(sorted({1, threads} if threads else {1, here.n_cores, here.n_threads}))
    with click.progressbar(length=runs, label="Measuring", file=click.get_text_stream("stderr")) as bar:
        found = machine.measure(counts, runs, lambda: bar.update(1))
    for line in machine.lines(found):
        click.echo(line, err=str(json_path) == "-")
    if json_path is not None:
        record.write(json_path, facts | found.result())
