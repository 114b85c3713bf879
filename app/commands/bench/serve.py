"""`pagewell bench serve`: load one server."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from app.commands.params import server_of, server_options
from app.printable import printable
from engine.errors import PagewellError


def _writable(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Said before minutes of measuring, not after them."""
    if path is not None and str(path) != "-" and not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(path.parent)!r} for it.", context, option)
    return path


JSON_OPTION = click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, allow_dash=True, dir_okay=False, writable=True),
    callback=_writable,
    help="Write all figures to this file (-: stdout).",
)


@click.command()
@server_options
@click.option("--model", help="Model to ask. Default: the first that the server offers.")
@click.option("--requests", "n_requests", type=click.IntRange(1), default=16, show_default=True, help="Requests in all.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1024),
    default=4,
    show_default=True,
    help="Requests at a time; the next is sent when one ends.",
)
@click.option("--at-once", is_flag=True, help="Send all requests at once, whatever --concurrency says.")
@click.option("--prompt-len", type=click.IntRange(1), default=512, show_default=True, help="Tokens of each request's own text.")
@click.option(
    "--prefix-len", type=click.IntRange(0), default=0, show_default=True, help="Tokens of a system prompt that all share."
)
@click.option("--output-len", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each answer.")
@click.option(
    "--ignore-eos/--no-ignore-eos",
    default=True,
    show_default=True,
    help="Ask for answers of exactly --output-len, by a field that some servers refuse.",
)
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed makes other prompts.")
@click.option(
    "--warmup",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Requests before, with other prompts; not counted. Two short ones that measure the tokens of a word come first anyway.",
)
@JSON_OPTION
def serve(
    config: Path | None,
    url: str | None,
    api_key: str | None,
    model: str | None,
    n_requests: int,
    concurrency: int,
    at_once: bool,
    prompt_len: int,
    prefix_len: int,
    output_len: int,
    ignore_eos: bool,
    temperature: float,
    seed: int,
    warmup: int,
    json_path: Path | None,
) -> None:
    """Load a server (Pagewell, or any OpenAI-compatible one) and report latencies and rates.

    Prompts are plain English that differs from request to request. Their lengths are near what was asked; the report has the
    tokens that the server counted.
    """
    from app.bench.load import Load
    from app.bench.record import write

    url, api_key = server_of(config, url, api_key)
    concurrency = n_requests if at_once else concurrency
    load = Load(n_requests, concurrency, prompt_len, prefix_len, output_len, seed, temperature, ignore_eos)
    result = asyncio.run(_measure(url, api_key, model, load, warmup))
    if json_path is not None:
        write(json_path, result)
    if result["figures"]["n_failed"]:
        raise PagewellError(f"{result['figures']['n_failed']} of {n_requests} requests failed.", "See the errors above.")


async def _measure(url: str, api_key: str | None, model: str | None, load: Any, warmup: int) -> dict[str, Any]:
    """`load` has its lengths in tokens."""
    from app.bench import load as client
    from app.bench import record, report
    from app.bench.wire import Endpoint
    from app.client import served_names

    facts = record.circumstances()
    Endpoint(url).place()
    names = await served_names(url, api_key)
    if not names:
        raise PagewellError(f"No server with a model answers at {url}.", "Start one with `pagewell serve`, or check --url.")
    endpoint = Endpoint(url, model or names[0], api_key)
    measure = await client.measure(endpoint, load.seed, ignore_eos=load.ignore_eos)
    load = replace(
        load,
        prompt_words=max(1, measure.words(load.prompt_words)),
        prefix_words=measure.words(load.prefix_words) if load.prefix_words else 0,
    )
    await client.warm_up(endpoint, load, warmup)
    with click.progressbar(
        length=load.n_requests, label=f"{printable(endpoint.model)} at {url}", file=click.get_text_stream("stderr")
    ) as bar:
        answers = await client.run(endpoint, load, lambda: bar.update(1))
    figures = report.summarise(load, answers)
    for line in report.lines(figures):
        click.echo(printable(line), err=True)
    return facts | {
        "url": url,
        "model": endpoint.model,
        "load": asdict(load),
        "tokens": asdict(measure),
        "figures": figures,
        "answers": [asdict(answer) for answer in answers],
    }
