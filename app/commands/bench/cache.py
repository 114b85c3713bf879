"""`pagewell bench cache`: what the prefix cache finds again in a day's mix of requests."""

from __future__ import annotations

from pathlib import Path

import click

from app.commands.bench.serve import JSON_OPTION


@click.command()
@click.option("--turns", type=click.IntRange(1, 10_000), default=60, show_default=True, help="Turns of the chat in the mix.")
@click.option("--seed", type=int, default=0, show_default=True)
@JSON_OPTION
def cache(turns: int, seed: int, json_path: Path | None) -> None:
    """Replay a mix of requests (a chat, its side calls, agents, an editor) through the KV cache's bookkeeping, without a model.

    For several sizes of the cache: the share of prompt tokens that is found again, with blocks evicted as the engine does it, and
    by least recent use alone.
    """
    from app.bench import record, replay
    from engine.kv.blocks import PROTECTED_SHARE

    calls = replay.mix(seed, turns)
    kinds = list(dict.fromkeys(call.kind for call in calls))
    to_stderr = str(json_path) == "-"
    longest = max(len(call.prompt) + len(call.answer) for call in calls)
    click.echo(f"{len(calls)} requests, the longest of {longest:,} tokens; found again of all prompt tokens:", err=to_stderr)
    click.echo(f"{'cache, tokens':>14} {'evicted by':16}{'all':>7}" + "".join(f"{kind:>9}" for kind in kinds), err=to_stderr)
    rows = []
    for factor in (1, 2, 3, 4, 6, 8):
        n_blocks = -(-longest // replay.BLOCK_SIZE) * factor
        for name, share in (("least recent use", 0.0), ("Pagewell", PROTECTED_SHARE)):
            result = replay.replay(calls, n_blocks, share)
            shares = {kind: result.kinds[kind].share for kind in kinds}
            n_tokens = n_blocks * replay.BLOCK_SIZE
            rows.append({"cache_tokens": n_tokens, "evicted_by": name, "all": result.all.share, "kinds": shares})
            line = f"{n_tokens:>14,} {name:16}{result.all.share:7.1%}" + "".join(f"{shares[kind]:9.1%}" for kind in kinds)
            click.echo(line, err=to_stderr)
    if json_path is not None:
        record.write(json_path, record.circumstances() | {"turns": turns, "seed": seed, "n_requests": len(calls), "rows": rows})
