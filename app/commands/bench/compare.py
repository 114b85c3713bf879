"""`pagewell bench compare`: Pagewell against other servers."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import click

from app.commands.bench.serve import JSON_OPTION
from app.printable import printable
from engine.errors import ConfigError, PagewellError


class _Command(click.Command):
    """Lists the workloads below its options."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from app.bench.workloads import ALWAYS, WORKLOADS

        with formatter.section("Workloads"):
            formatter.write_dl([*((workload.name, workload.says) for workload in WORKLOADS), *ALWAYS.items()])


@click.command(cls=_Command)
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME[=HOW]",
    help="A server to compare with: llama.cpp=/path/to/llama-server, openvino=/path/to/python (that has openvino-genai), or any "
    "other, with the command that starts it: 'NAME=program --model {model} --port {port} --threads {threads}'. Default: "
    "llama.cpp, if llama-server is on PATH.",
)
@click.option("--workload", "names", multiple=True, metavar="NAME", help="Only this one; see below. Default: all.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of each server. Default: the physical cores.")
@click.option(
    "--scale",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="Multiply all lengths: to try the set-up out. Such figures compare with no others.",
)
@click.option(
    "--patience",
    type=click.FloatRange(0),
    default=60,
    show_default=True,
    help="Longest, in seconds, that each workload waits for other programs to be quiet.",
)
@click.option("--logs", type=click.Path(path_type=Path, file_okay=False), help="Keep the servers' logs in this folder.")
@JSON_OPTION
def compare(
    models: tuple[str, ...],
    peers: tuple[str, ...],
    names: tuple[str, ...],
    rounds: int,
    threads: int | None,
    scale: float,
    patience: float,
    logs: Path | None,
    json_path: Path | None,
) -> None:
    """Compare Pagewell with other servers on MODEL (default: the bundled one), with the same requests and threads.

    In each round all servers are started, and each workload is put to one after the other; the ratios are taken within a round.
    Above 1, Pagewell is better.
    """
    from app.bench import peers as servers
    from app.bench import record, workloads
    from app.bench.compare import Comparison
    from app.catalog import bundled, library
    from app.machine import this_machine

    there_are = (*workloads.BY_NAME, *workloads.ALWAYS)
    unknown = sorted({*names} - {*there_are})
    if unknown:
        raise ConfigError(f"There is no workload {unknown[0]}.", f"There are {', '.join(there_are)}.")
    others = [servers.parse(text) for text in peers] or servers.found()
    if not others:
        raise ConfigError("There is nothing to compare with.", "Name a server: --peer llama.cpp=/path/to/llama-server.")
    if len({peer.name for peer in others}) < len(others):
        raise ConfigError("Two peers have the same name.", "Give each its own.")
    everyone = [servers.pagewell(), *others]
    chosen = [workload.scaled(scale) for workload in workloads.WORKLOADS if not names or workload.name in names]
    paths = [library.locate(name).path.resolve() for name in models or (bundled.NAME,)]
    threads = threads or this_machine().n_cores
    facts = record.circumstances() | {"threads": threads, "rounds": rounds, "scale": scale, "models": []}
    facts["servers"] = {peer.name: {"command": peer.command, "version": peer.version()} for peer in everyone}
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _terminate)
    with tempfile.TemporaryDirectory(prefix="pagewell-bench-") as scratch:
        folder = _folder(logs or Path(scratch))
        comparisons = [Comparison(path, everyone, chosen, threads, rounds, folder / path.stem, patience, _say) for path in paths]
        minutes = sum(comparison.guess_s() for comparison in comparisons) / 60
        click.echo(f"About {max(1, round(minutes))} min at a guess; after the first round there is a better one.", err=True)
        for comparison in comparisons:
            _run(comparison, facts, json_path)
    if str(json_path) == "-":
        record.write(Path("-"), facts)
    if n_errors := sum(len(comparison.errors) for comparison in comparisons):
        raise PagewellError(f"{n_errors} of the measurements failed.", "See the lines above; --logs keeps what the servers said.")


def _folder(path: Path) -> Path:
    """Made if it is not there; ConfigError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"No logs can be kept in {path}: {error.strerror}.", "Name another folder.") from error
    return path.resolve()


def _say(line: str) -> None:
    click.echo(printable(line), err=True)


def _run(comparison: Any, facts: dict[str, Any], json_path: Path | None) -> None:
    """One model; the file is written after each round, so that an interrupt loses one round and not all."""
    from app.bench import ratios, record

    models: list[dict[str, Any]] = facts["models"]
    models.append({})

    def keep() -> None:
        models[-1] = comparison.result() | {"summary": ratios.summarise(comparison.rounds)}
        if json_path is not None and str(json_path) != "-":
            record.write(json_path, facts)

    click.echo(f"\n{comparison.model.name}, {comparison.threads} threads", err=True)
    comparison.run(keep)
    for line in [*ratios.lines(models[-1]["summary"]), *comparison.errors]:
        click.echo(printable(line), err=str(json_path) == "-")


def _terminate(number: int, _: object) -> NoReturn:
    """Ended by another program, or its terminal is gone: on its way out, the servers are ended too."""
    raise SystemExit(128 + number)
