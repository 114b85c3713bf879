"""`pagewell bench perplexity`: what fast arithmetic and a narrow KV cache cost in quality."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from app.commands.bench.serve import JSON_OPTION
from engine.config import KVCacheDtype
from engine.errors import ConfigError

if TYPE_CHECKING:
    from app.bench.perplexity import Perplexity

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
CACHES = tuple(name for name in get_args(KVCacheDtype) if name not in ("auto", "float32"))


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--text", type=FILE, help="Text to read. Default: one that comes along.")
@click.option(
    "--kv-cache-dtype",
    "caches",
    multiple=True,
    type=click.Choice(CACHES),
    help="Also with exact products and a KV cache of this format. May be given several times.",
)
@click.option("--llama-perplexity", "peer", type=FILE, help="llama.cpp's program, to compare with.")
@JSON_OPTION
def perplexity(
    models: tuple[str, ...], text: Path | None, caches: tuple[str, ...], peer: Path | None, json_path: Path | None
) -> None:
    """Read a text with exact arithmetic, as models run by default, and with one thing changed at a time: how far apart is that?

    Exact: weights and activations in float32 as they are multiplied, and a KV cache of float32. Fast: activations quantised to
    int8 in blocks of 32. Default: fast, and the KV cache's default format. Beside a difference stands its standard error over the
    tokens.
    """
    from app.bench import perplexity as ppl
    from app.bench import record
    from app.catalog import library
    from app.machine import this_machine

    text = text or ppl.TEXT
    try:
        words = text.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{text} is no text in UTF-8: {error}.", "Give a text file.") from error
    result = record.circumstances() | {"text": text.name, "window": ppl.WINDOW, "models": {}}
    changes: dict[str, dict[str, str]] = {
        "default": {"kernel_precision": "fast", "kv_cache_dtype": "auto"},
        "fast": {"kernel_precision": "fast"},
    }
    changes |= {f"kv {name}": {"kv_cache_dtype": name} for name in caches}
    to_stderr = str(json_path) == "-"
    columns = [f"{name:>27}" for name in (*changes, *(("llama.cpp",) if peer is not None else ()))]
    click.echo(f"{'model':44} {'tokens':>7} {'exact':>9}{''.join(columns)}", err=to_stderr)
    for model in [library.locate(name).path for name in models]:
        exact = ppl.measure(model, words, **ppl.EXACT)
        row = {"n_tokens": exact.n_tokens, "exact": exact.value}
        line = f"{model.name[:44]:44} {exact.n_tokens:7} {exact.value:9.4f}"
        for name, knobs in changes.items():
            row[name] = _compared(exact, ppl.measure(model, words, **ppl.EXACT | knobs))
            shown = f"{row[name]['over_exact'] - 1:+.3%} ± {row[name]['standard_error']:.3%}"
            line += f" {row[name]['value']:8.4f} {shown:>17}"
        if peer is not None:
            value = ppl.of_llama_cpp(peer, model, text, this_machine().n_cores)
            row["llama.cpp"] = {"value": value, "over_exact": value / exact.value}
            line += f" {value:8.4f} {value / exact.value - 1:+17.3%}"
        result["models"][model.name] = row
        click.echo(line, err=to_stderr)
    if json_path is not None:
        record.write(json_path, result)


def _compared(exact: Perplexity, other: Perplexity) -> dict[str, float]:
    from app.bench import perplexity as ppl

    return {
        "value": other.value,
        "over_exact": other.value / exact.value,
        "standard_error": ppl.standard_error(exact, other),
        "rms_log_probability_difference": ppl.spread(exact, other),
    }
