"""`pagewell bench`: measurements."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from app.commands.params import server_of, server_options
from app.printable import printable
from engine.errors import PagewellError


@click.group()
def bench() -> None:
    """Measure speed."""


@bench.command()
@server_options
@click.option("--model", help="Model to ask. Default: the first that the server offers.")
@click.option("--requests", "n_requests", type=click.IntRange(1), default=16, show_default=True, help="Requests in all.")
@click.option("--concurrency", type=click.IntRange(1, 1024), default=4, show_default=True, help="Requests at a time.")
@click.option("--prompt-len", type=click.IntRange(1), default=512, show_default=True, help="Words of each request's own text.")
@click.option(
    "--prefix-len", type=click.IntRange(0), default=0, show_default=True, help="Words of a system prompt that all share."
)
@click.option("--output-len", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Another seed makes other prompts.")
@click.option(
    "--warmup", type=click.IntRange(0), default=1, show_default=True, help="Requests before, with other prompts; not counted."
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path, allow_dash=True), help="Write all figures to this file (-: stdout)."
)
def serve(
    config: Path | None,
    url: str | None,
    api_key: str | None,
    model: str | None,
    n_requests: int,
    concurrency: int,
    prompt_len: int,
    prefix_len: int,
    output_len: int,
    temperature: float,
    seed: int,
    warmup: int,
    json_path: Path | None,
) -> None:
    """Load a server (Pagewell, or any OpenAI-compatible one) and report latencies and rates.

    Prompts are made of common words, about one token each; the report has the tokens that the server counted.
    """
    from app.bench.load import Load

    url, api_key = server_of(config, url, api_key)
    load = Load(model or "", n_requests, concurrency, prompt_len, prefix_len, output_len, seed, temperature)
    result = asyncio.run(_measure(url, api_key, load, warmup))
    if json_path is not None:
        with click.open_file(str(json_path), "w") as file:
            file.write(json.dumps(result, indent=2) + "\n")
    if result["figures"]["n_failed"]:
        raise PagewellError(f"{result['figures']['n_failed']} of {n_requests} requests failed.", "See the errors above.")


async def _measure(url: str, api_key: str | None, load: Any, warmup: int) -> dict[str, Any]:
    from dataclasses import replace

    from app.bench import load as client
    from app.bench import report
    from app.commands.answering import client_of, served_names
    from app.machine import this_machine

    names = await served_names(url, api_key)
    if not names:
        raise PagewellError(f"No server with a model answers at {url}.", "Start one with `pagewell serve`, or check --url.")
    load = replace(load, model=load.model or names[0])
    async with client_of(url, api_key) as http:
        if warmup:
            await client.run(http, replace(load, n_requests=warmup, concurrency=1, prefix_words=0, seed=load.seed + 1_000_003))
        with click.progressbar(
            length=load.n_requests, label=f"{printable(load.model)} at {url}", file=click.get_text_stream("stderr")
        ) as bar:
            answers = await client.run(http, load, lambda _: bar.update(1))
    figures = report.summarise(load, answers)
    for line in report.lines(figures):
        click.echo(printable(line), err=True)
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "pagewell": metadata.version("pagewell"),
        "machine": asdict(this_machine()),
        "url": url,
        "load": asdict(load),
        "figures": figures,
        "answers": [asdict(answer) for answer in answers],
    }
