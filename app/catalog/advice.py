"""Which of a repository's choices suits this machine: whether it fits, with what window, and how fast it can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from app.catalog import quality
from app.catalog.choices import Choice
from app.catalog.preview import Preview
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner.prediction import Weighed, predict

GOOD_WINDOW = 8192
"""Tokens that are room enough for a conversation; a model made for less needs no more."""
READING_TOK_S = 8.0
"""People read about so fast."""


@dataclass(frozen=True, slots=True)
class Row:
    """A choice, as it would be here."""

    choice: Choice
    bits: float | None
    """Of a weight, on the average; None where the parameters were not counted."""
    window: int
    """In tokens; 0: it does not fit."""
    why_not: str
    """In words, where it does not fit or is not loaded."""
    most_tok_s: float | None
    """All weights are read once for each token, so memory cannot give more: bytes of a second over bytes of the model."""


def capped(config: EngineConfig, longest: int) -> EngineConfig:
    """For one model of several: max_model_len is the most, and one made for a window of fewer tokens (`longest`) has its own."""
    most = config.max_model_len
    return config if most is None or most <= longest else structs.replace(config, max_model_len=longest)


def rows(
    found: Sequence[Choice],
    facts: Preview,
    config_of: Callable[[Choice], EngineConfig],
    *,
    read_bytes_s: float | None,
    free: int | None = None,
) -> list[Row]:
    """A row for each choice. The model's configuration is the same in all of them, whichever file it was read from.

    config_of: what a choice would be loaded with. read_bytes_s: what memory gives, measured. free: bytes to be had; None asks the
    system.
    """
    return [_row(each, facts, capped(config_of(each), facts.config.max_position), read_bytes_s, free) for each in found]


def _row(choice: Choice, facts: Preview, config: EngineConfig, read_bytes_s: float | None, free: int | None) -> Row:
    window, why_not = 0, ""
    if choice.is_loaded:
        try:
            n_params = facts.n_params or choice.n_bytes // 2
            taken = predict(config, Weighed(facts.config, n_params, choice.n_bytes), free=free)
            window = taken.budget.max_model_len
        except ConfigError:
            why_not = "does not fit into memory"
    else:
        why_not = "not loaded yet"
    bits = choice.n_bytes * 8 / facts.n_params if facts.n_params else None
    return Row(choice, bits, window, why_not, read_bytes_s / choice.n_bytes if read_bytes_s else None)


def best(found: Sequence[Row]) -> Row | None:
    """The one to take unless another is asked for; None where none fits.

    Of those with a good window, the best in quality that is not slower than a person reads; of two that are alike the smaller.
    Where all are slower, the fastest that keeps the quality of four bits, else the fastest.
    """
    fitting = [row for row in found if row.window]
    if not fitting:
        return None
    roomy = [row for row in fitting if row.window >= min(GOOD_WINDOW, max(row.window for row in fitting))]
    quick = [row for row in roomy if row.most_tok_s is None or row.most_tok_s >= READING_TOK_S]
    if quick:
        return min(quick, key=lambda row: (_loss(row), row.choice.n_bytes))
    decent = [row for row in roomy if _loss(row) <= 0.5]
    return min(decent or roomy, key=lambda row: row.choice.n_bytes)


def _loss(row: Row) -> float:
    """In steps that a person could notice."""
    found = quality.loss(row.choice.quant) if row.choice.quant else 0.0
    return round(1.0 if found is None else found, 2)


def words(row: Row) -> tuple[str, str, str, str]:
    """(bits, quality, speed, window) for a person."""
    bits = f"{row.bits:.1f}" if row.bits else ""
    speed = f"up to {row.most_tok_s:.0f} tok/s" if row.most_tok_s and not row.why_not else ""
    return (
        bits,
        quality.words(row.choice.quant) if row.choice.quant else "as made",
        speed,
        row.why_not or f"{row.window:,} tokens",
    )
