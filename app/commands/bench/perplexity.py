"""`pagewell bench perplexity`: what the fast arithmetic costs in quality."""

from __future__ import annotations

from pathlib import Path

import click

from app.commands.bench.serve import JSON_OPTION

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Text to read. Default: one that comes along."
)
@click.option("--llama-perplexity", "peer", type=FILE, help="llama.cpp's program, to compare with.")
@JSON_OPTION
def perplexity(models: tuple[Path, ...], text: Path | None, peer: Path | None, json_path: Path | None) -> None:
    """Read a text with exact and with fast products, and say how far apart they are.

    Exact: weights dequantised, products in float32. Fast: activations quantised to int8 in blocks of 32, which is the default.
    """
    from app.bench import perplexity as ppl
    from app.bench import record
    from app.machine import this_machine

    text = text or ppl.TEXT
    words = text.read_text("utf-8")
    result = record.circumstances() | {"text": text.name, "window": ppl.WINDOW, "models": {}}
    to_stderr = str(json_path) == "-"
    click.echo(f"{'model':44} {'tokens':>7} {'exact':>9} {'fast':>9} {'':>8} {'llama.cpp':>9}", err=to_stderr)
    for model in models:
        exact = ppl.measure(model, words, kernel_precision="exact")
        fast = ppl.measure(model, words, kernel_precision="fast")
        row = {
            "n_tokens": exact.n_tokens,
            "exact": exact.value,
            "fast": fast.value,
            "fast_over_exact": fast.value / exact.value,
            "rms_log_probability_difference": ppl.spread(exact, fast),
        }
        line = (
            f"{model.name[:44]:44} {exact.n_tokens:7} {exact.value:9.4f} {fast.value:9.4f} {fast.value / exact.value - 1:+8.3%}"
        )
        if peer is not None:
            row["llama_cpp"] = ppl.of_llama_cpp(peer, model, text, this_machine().n_cores)
            row["llama_cpp_over_exact"] = row["llama_cpp"] / exact.value
            line += f" {row['llama_cpp']:9.4f} {row['llama_cpp_over_exact'] - 1:+8.3%}"
        result["models"][model.name] = row
        click.echo(line, err=to_stderr)
    if json_path is not None:
        record.write(json_path, result)
