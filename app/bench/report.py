"""Figures of a load: percentiles, rates, and the JSON that is kept under docs/performance."""

from __future__ import annotations

import math
from typing import Any

from app.bench.load import Answer, Load

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
    return figures | {
        "prompt_tokens": n_prompt,
        "cached_tokens": n_cached,
        "cached_share": n_cached / n_prompt if n_prompt else 0.0,
        "output_tokens": n_output,
        "output_tokens_per_s": n_output / wall_s,
        "prompt_tokens_per_s": n_prompt / wall_s,
        "requests_per_s": len(good) / wall_s,
        "ttft_s": _spread([a.ttft_s for a in good]),
        "itl_s": _spread([gap for a in good for gap in a.gaps_s]),
        "time_per_output_token_s": _spread(paced),
        "total_s": _spread([a.total_s for a in good]),
    }


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures for a person."""
    out = [f"{figures['n_requests'] - figures['n_failed']} answers in {figures['wall_s']:.1f} s, {figures['n_failed']} failed"]
    out += [f"  {error}" for error in figures["errors"][:5]]
    if "ttft_s" not in figures:
        return out
    out.append(
        f"prompt {figures['prompt_tokens']} tokens, {figures['cached_tokens']} from cache ({figures['cached_share']:.0%}); "
        f"output {figures['output_tokens']} tokens, {figures['output_tokens_per_s']:.1f} tok/s"
    )
    out.append(f"{'':24}{'mean':>9}{'p50':>9}{'p95':>9}{'p99':>9}")
    for key, label in (("ttft_s", "first token"), ("itl_s", "between tokens"), ("time_per_output_token_s", "per output token")):
        if figures[key]:
            out.append(
                f"{label + ', ms':24}" + "".join(f"{figures[key][name] * 1000:9.1f}" for name in ("mean", "p50", "p95", "p99"))
            )
    return out


def _spread(values: list[float]) -> dict[str, float]:
    """Mean, percentiles and extremes; empty when there is no value."""
    if not values:
        return {}
    spread = {"mean": sum(values) / len(values), "min": min(values), "max": max(values)}
    return spread | {f"p{share}": percentile(values, share) for share in PERCENTILES}
