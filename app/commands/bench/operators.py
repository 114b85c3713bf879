"""`pagewell bench ops`: each operator by itself."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from app.commands.bench.serve import JSON_OPTION
from engine.errors import ConfigError


@click.command()
@click.option("--shapes", "name", default="smollm2-135m", show_default=True, help="Model whose sizes are taken; all: every one.")
@click.option("--op", "ops", multiple=True, help="Only this operator; sample: the sampler.")
@click.option(
    "--qtype", "qtypes", multiple=True, help="Weight type of products; all: every one. Default: those of the model's file."
)
@click.option("--rows", multiple=True, type=click.IntRange(1), help="Rows of activations. Default: 1, 4, 16, 128 and 512.")
@click.option("--source", "sources", multiple=True, help="Only from this source: cpp, cpp exact, reference; engine: the sampler.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: the physical cores.")
@JSON_OPTION
def ops(
    name: str,
    ops: tuple[str, ...],
    qtypes: tuple[str, ...],
    rows: tuple[int, ...],
    sources: tuple[str, ...],
    threads: int | None,
    json_path: Path | None,
) -> None:
    """Time each operator on the sizes of a model, from every source that has it, as a share of this machine's limits.

    The limits are measured in the same run: reading as many bytes as the model's weights have, and multiplying. A product's limit
    is the one that takes longer; operators that work in a core's own cache have none.
    """
    from app.bench import limits, operators, record, sampling
    from app.bench.others import Others, warning
    from app.bench.shapes import PRESETS
    from app.machine import this_machine
    from engine.loading import check_native
    from engine.runner import threads as computing
    from kernels.cpu.launch import missing
    from kernels.ops import QTYPES

    if name != "all" and name not in PRESETS:
        raise ConfigError(f"There are no shapes {name}.", f"There are {', '.join(PRESETS)}.")
    check_native()
    known_sources = {*operators.sources(), sampling.SOURCE}
    for given, known in ((ops, {*operators.OPS, "sample"}), (qtypes, {*QTYPES, "all"}), (sources, known_sources)):
        if unknown := sorted({*given} - known):
            raise ConfigError(f"{unknown[0]} is not known.", f"There are {', '.join(sorted(known))}.")
    threads = threads or this_machine().n_cores
    rows = rows or operators.ROWS
    computing.use(threads)
    facts = record.circumstances() | {"threads": threads}
    others, timings, measured = Others(), [], {}
    click.echo(operators.HEADER, err=str(json_path) == "-")
    for shapes in PRESETS.values() if name == "all" else (PRESETS[name],):
        found = None if missing else limits.measure((threads,), 3, sizes=(shapes.weight_bytes // 1024 * 1024,))
        measured[shapes.name] = found.result() if found else None
        types = QTYPES if "all" in qtypes else qtypes or shapes.qtypes
        for case in operators.cases(shapes, rows, types):
            if not ops or case.op in ops:
                for timing in operators.measure(case, found, threads, sources):
                    timings.append({"shapes": shapes.name} | asdict(timing))
                    click.echo(operators.line(timing), err=str(json_path) == "-")
        if (not sources or sampling.SOURCE in sources) and (not ops or "sample" in ops):
            for timing in sampling.measure(shapes, rows):
                timings.append({"shapes": shapes.name} | asdict(timing))
                click.echo(operators.line(timing), err=str(json_path) == "-")
    if not timings:
        raise ConfigError("Nothing was measured: what was asked for excludes each other.", "Leave out --source, or --op.")
    if (disturbed := warning(others.cores())) is not None:
        click.echo(disturbed, err=True)
    if json_path is not None:
        record.write(json_path, facts | {"limits": measured, "others_cores": others.cores(), "timings": timings})
