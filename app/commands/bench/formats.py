"""`pagewell bench formats`: what number formats of weights cost and bring."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from app.commands.bench.serve import JSON_OPTION
from app.printable import printable
from engine.config import Quantization

SCHEMES = tuple(name for name in get_args(Quantization) if name not in ("auto", "none"))


@click.command()
@click.argument("dense")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option(
    "--quantization",
    "schemes",
    multiple=True,
    type=click.Choice(SCHEMES),
    help="Also quantise DENSE on load. May be given several times.",
)
@click.option("--decodes", type=click.IntRange(4), default=64, show_default=True, help="Tokens of an answer.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: the physical cores.")
@click.option("--kernel-precision", type=click.Choice(("fast", "exact")), default="fast", show_default=True)
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Write the table into this file.")
@JSON_OPTION
def formats(
    dense: str,
    models: tuple[str, ...],
    schemes: tuple[str, ...],
    decodes: int,
    rounds: int,
    threads: int | None,
    kernel_precision: str,
    markdown: Path | None,
    json_path: Path | None,
) -> None:
    """Compare MODELs, quantised from DENSE, with it: error of the weights, bits for each, operator, speed of one answer.

    DENSE is a checkpoint in float16, bfloat16 or float32. The error is that of all quantised matrices together, the length of the
    difference over the length of the dense weights; it says nothing about the quality of answers that `bench perplexity` does not
    say better.
    """
    from app.bench import formats as measuring
    from app.bench import record
    from app.catalog import library
    from engine.weights.loader import open_checkpoint

    path = library.locate(dense).path.resolve()
    candidates = [measuring.Candidate(path)]
    candidates += [measuring.Candidate(path, scheme) for scheme in schemes]
    candidates += [measuring.Candidate(library.locate(name).path.resolve()) for name in models]
    reference = open_checkpoint(path)
    pairs = [(candidate, measuring.compared(candidate, reference)) for candidate in candidates]

    def say(line: str) -> None:
        click.echo(printable(line), err=True)

    facts = record.circumstances() | {"dense": path.name, "decodes": decodes, "kernel_precision": kernel_precision}
    measuring.speeds(pairs, decodes, rounds, say, threads=threads, kernel_precision=kernel_precision)
    rows = [row.result() for _, row in pairs]
    click.echo(measuring.table(rows), err=str(json_path) == "-")
    if markdown is not None:
        markdown.write_text(_page(facts, measuring.table(rows)), "utf-8")
    if json_path is not None:
        record.write(json_path, facts | {"rows": rows})


def _page(facts: dict, table: str) -> str:
    machine = facts["machine"]
    return (
        "# Number formats of weights\n\n"
        f"Written by `pagewell bench formats` ({facts['date'][:10]}, {facts['commit']}, {machine['processor']}, "
        f"load {facts['busy']}): checkpoints quantised from {facts['dense']}, answers of {facts['decodes']} tokens, "
        f"products {facts['kernel_precision']}. `error`: of all quantised matrices together, the length of their difference from "
        "the dense weights over the length of these. `bits`: of a quantised weight with its share of scales and zero points, as "
        "it is loaded; what operators pack may be smaller. `operator`: the implementation of products that most weights go "
        f"through.\n\n{table}\n"
    )
