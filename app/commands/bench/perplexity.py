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
    help="Compare exact products with a KV cache of this format instead. May be given several times.",
)
@click.option("--llama-perplexity", "peer", type=FILE, help="llama.cpp's program, to compare with.")
@JSON_OPTION
def perplexity(
    models: tuple[str, ...], text: Path | None, caches: tuple[str, ...], peer: Path | None, json_path: Path | None
) -> None:
    """Read a text with exact arithmetic and with one thing changed at a time: how far apart is that?

    Exact: weights and activations in float32 as they are multiplied, and a KV cache of float32. Fast: activations quantised to
    int8 in blocks of 32. Default: fast, and the KV cache's default format. With --kv-cache-dtype: exact, but for the KV cache.
    Beside a difference stands its standard error over the tokens.
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
    changes = {f"kv {name}": {"kv_cache_dtype": name} for name in caches} or {
        "default": {"kernel_precision": "fast", "kv_cache_dtype": "auto"},
        "fast": {"kernel_precision": "fast"},
    }
    to_stderr = str(json_path) == "-"
    click.echo(_line("model", "tokens", "", "perplexity", "change", "KV bytes a token"), err=to_stderr)
    for model in [library.locate(name).path for name in models]:
        exact = ppl.measure(model, words, **ppl.EXACT)
        row = {"n_tokens": exact.n_tokens, "exact": exact.value, "kv_token_bytes": exact.kv_token_bytes}
        result["models"][model.name] = row
        line = _line(model.name[:44], exact.n_tokens, "exact", f"{exact.value:.4f}", "", f"{exact.kv_token_bytes:,}")
        click.echo(line, err=to_stderr)
        for name, knobs in changes.items():
            other = ppl.measure(model, words, **ppl.EXACT | knobs)
            row[name] = _compared(exact, other)
            change = f"{row[name]['over_exact'] - 1:+.3%} ± {row[name]['standard_error']:.3%}"
            click.echo(_line("", "", name, f"{other.value:.4f}", change, f"{other.kv_token_bytes:,}"), err=to_stderr)
        if peer is not None:
            value = ppl.of_llama_cpp(peer, model, text, this_machine().n_cores)
            row["llama.cpp"] = {"value": value, "over_exact": value / exact.value}
            click.echo(_line("", "", "llama.cpp", f"{value:.4f}", f"{value / exact.value - 1:+.3%}", ""), err=to_stderr)
    if json_path is not None:
        record.write(json_path, result)


def _line(model: str, n_tokens: int | str, what: str, value: str, change: str, n_bytes: str) -> str:
    return f"{model:44} {n_tokens:>7}  {what:14} {value:>10} {change:>19} {n_bytes:>17}"


def _compared(exact: Perplexity, other: Perplexity) -> dict[str, float]:
    from app.bench import perplexity as ppl

    return {
        "value": other.value,
        "over_exact": other.value / exact.value,
        "standard_error": ppl.standard_error(exact, other),
        "rms_log_probability_difference": ppl.spread(exact, other),
        "kv_token_bytes": other.kv_token_bytes,
    }
