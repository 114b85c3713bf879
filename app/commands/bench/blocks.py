"""`pagewell bench blocks`: what the size of a block changes."""

from __future__ import annotations

from pathlib import Path

import click

from app.commands.bench.serve import JSON_OPTION
from app.printable import printable

SIZES = (16, 32, 64, 128)


@click.command()
@click.argument("model", required=False)
@click.option("--tokens", type=click.IntRange(256), default=2048, show_default=True, help="Of the prompt.")
@click.option("--decodes", type=click.IntRange(4), default=48, show_default=True, help="Tokens of its answer.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--turns", type=click.IntRange(1, 10_000), default=30, show_default=True, help="Turns of the chat in the mix.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: the physical cores.")
@JSON_OPTION
def blocks(
    model: str | None, tokens: int, decodes: int, rounds: int, turns: int, threads: int | None, json_path: Path | None
) -> None:
    """Answer a long prompt on MODEL with KV blocks of 16, 32, 64 and 128 tokens, and replay a mix of requests with each size.

    Prefill and decode of one answer; the host's part of a decode; the time until a known prompt has its blocks; the share of all
    prompt tokens that caches of two sizes find again; the share of the blocks' room that holds no token.
    """
    from app.bench import blocks as measuring
    from app.bench import record
    from app.catalog import bundled, library
    from engine.config import EngineConfig

    path = library.locate(model or bundled.NAME).path.resolve()
    config = EngineConfig(max_model_len=tokens + decodes + 1, max_num_seqs=4, swap_space=0, threads=threads)
    facts = record.circumstances() | {"model": path.name, "tokens": tokens, "decodes": decodes, "turns": turns}
    to_stderr = str(json_path) == "-"

    def say(line: str) -> None:
        click.echo(printable(line), err=True)

    speeds = measuring.speeds(path, config, SIZES, tokens, decodes, rounds, say)
    rows = [one.result(speeds[0]) | measuring.found(one.block_size, turns, seed=0) for one in speeds]
    caches = list(rows[0]["found"])
    head = f"{'block':>6}{'prefill':>14}{'decode':>14}{'host/decode':>13}{'admission':>11}"
    click.echo(head + "".join(f"{f'found/{n // 1000}k':>11}" for n in caches) + f"{'waste':>8}", err=to_stderr)
    for row in rows:
        times = f"{row['decode_host_s'] * 1e6:10.0f} us{row['admit_s'] * 1e6:8.0f} us"
        shares = "".join(f"{row['found'][n]:11.1%}" for n in caches)
        rates = f"{row['prefill_tok_s']:8.0f} tok/s{row['decode_tok_s']:8.1f} tok/s"
        click.echo(f"{row['block_size']:6}{rates}{times}{shares}{row['waste']:8.2%}", err=to_stderr)
    if json_path is not None:
        record.write(json_path, facts | {"rows": rows})
