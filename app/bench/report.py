"""Figures of a load: percentiles, rates, and the JSON that is kept under docs/performance."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from app.bench.answer import Answer
from app.bench.load import Load

PERCENTILES = (50, 95, 99)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` percent of the values do not exceed (nearest rank). NaN of nothing is an error."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share / 100 * len(ordered)) - 1)]


def summarise(load: Load, answers: list[Answer]) -> dict[str, Any]:
    """Figures over the answers that came to their end: *_s seconds, *_per_s rates over the whole wall time."""
    good = [answer for answer in answers if answer.error is None]
    wall_s = max((a.sent_s + a.total_s for a in answers), default=0.0) - min((a.sent_s for a in answers), default=0.0)
    figures: dict[str, Any] = {
        "n_requests": len(answers),
        "n_failed": len(answers) - len(good),
        "errors": sorted({a.error for a in answers if a.error}),
        "concurrency": load.concurrency,
        "wall_s": wall_s,
    }
    if not good:
        return figures
    n_output = sum(a.n_output for a in good)
    n_prompt = sum(a.n_prompt for a in good)
    n_cached = sum(a.n_cached for a in good)
    paced = [(a.pieces_s[-1] - a.ttft_s) / (a.n_output - 1) for a in good if a.n_output > 1]
    steady = steady_rate(good)
    return figures | {
        "prompt_tokens": n_prompt,
        "cached_tokens": n_cached,
        "cached_share": n_cached / n_prompt if n_prompt else 0.0,
        "output_tokens": n_output,
        "output_tokens_per_s": n_output / wall_s,
        "steady_tokens_per_s": steady,
        "prompt_tokens_per_s": n_prompt / wall_s,
        "requests_per_s": len(good) / wall_s,
        "ttft_s": _spread([a.ttft_s for a in good]),
        "itl_s": _spread([gap for a in good for gap in a.gaps_s]),
        "time_per_output_token_s": _spread(paced),
        "total_s": _spread([a.total_s for a in good]),
    }


def steady_rate(answers: list[Answer]) -> float | None:
    """Tokens a second while every stream decodes: from when the last one began to when the first one ended.

    None when there is no such time, or less than ten pieces in it. A piece counts as its answer's average of tokens.
    """
    answers = _absolute(answers)
    begin = max((a.pieces_s[0] for a in answers), default=0.0)
    end = min((a.pieces_s[-1] for a in answers), default=0.0)
    n_pieces, n_tokens = 0, 0.0
    for answer in answers:
        inside = sum(begin < moment <= end for moment in answer.pieces_s)
        n_pieces += inside
        n_tokens += inside * answer.n_output / len(answer.pieces_s)
    return n_tokens / (end - begin) if n_pieces >= 10 else None


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures for a person."""
    out = [f"{figures['n_requests'] - figures['n_failed']} answers in {figures['wall_s']:.1f} s, {figures['n_failed']} failed"]
    out += [f"  {error}" for error in figures["errors"][:5]]
    if "ttft_s" not in figures:
        return out
    out.append(
        f"prompt {figures['prompt_tokens']} tokens, {figures['cached_tokens']} from cache ({figures['cached_share']:.0%}); "
        f"output {figures['output_tokens']} tokens"
    )
    steady = figures["steady_tokens_per_s"]
    out.append(
        f"tok/s: {figures['output_tokens_per_s']:.1f} out, {figures['prompt_tokens_per_s']:.1f} in, over the whole time"
        + (f"; {steady:.1f} out while all streams decoded" if steady else "")
    )
    out.append(f"{'':24}{'mean':>9}{'p50':>9}{'p95':>9}{'p99':>9}")
    for key, label in (("ttft_s", "first token"), ("itl_s", "between tokens"), ("time_per_output_token_s", "per output token")):
        if figures[key]:
            out.append(
                f"{label + ', ms':24}" + "".join(f"{figures[key][name] * 1000:9.1f}" for name in ("mean", "p50", "p95", "p99"))
            )
    return out


def _absolute(answers: list[Answer]) -> list[Answer]:
    """The answers with the times of their pieces counted from the start of the load."""
    return [replace(a, pieces_s=[a.sent_s + moment for moment in a.pieces_s]) for a in answers]


def _spread(values: list[float]) -> dict[str, float]:
    """Mean, percentiles and extremes; empty when there is no value."""
    if not values:
        return {}
    spread = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
    return spread | {f"p{share}": percentile(values, share) for share in PERCENTILES}
