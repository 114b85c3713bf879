"""From the rounds of a comparison to ratios: how many times better Pagewell is than each other server."""

from __future__ import annotations

import statistics
from typing import Any

from app.bench.compare import Round
from app.bench.others import TOO_MUCH
from app.bench.workloads import is_compared, is_more_better

BASE = "pagewell"


def summarise(rounds: list[Round], base: str = BASE) -> list[dict[str, Any]]:
    """One row for each workload and figure that occurs: medians over the rounds, and ratios to each other server.

    What other programs disturbed is left out. A ratio is taken within a round, is above 1 where `base` is better, and has
    median, min and max over the rounds. "best" names the other server with the lowest median ratio.
    """
    keys: dict[tuple[str, str], None] = {}
    for servers in rounds:
        for workloads in servers.values():
            for workload, figures in workloads.items():
                keys |= {(workload, figure): None for figure in figures if is_compared(figure)}
    return [_row(rounds, workload, figure, base) for workload, figure in keys]


def lines(rows: list[dict[str, Any]], base: str = BASE) -> list[str]:
    """The rows for a person, one table."""
    names = sorted({name for row in rows for name in row["medians"]}, key=lambda name: (name != base, name))
    others = [name for name in names if name != base]
    out = [f"{'':14}{'':20}" + "".join(f"{name:>14}" for name in names) + "".join(f"{'x ' + name:>29}" for name in others)]
    for row in rows:
        cells = "".join(f"{_number(row['figure'], row['medians'].get(name)):>14}" for name in names)
        cells += "".join(f"{_ratio(row['ratios'].get(name)):>29}" for name in others)
        out.append(f"{row['workload']:14}{row['figure']:20}{cells}")
    return out


def _row(rounds: list[Round], workload: str, figure: str, base: str) -> dict[str, Any]:
    values: dict[str, dict[int, float]] = {}
    for index, servers in enumerate(rounds):
        for name, workloads in servers.items():
            figures = workloads.get(workload, {})
            value = figures.get(figure)
            if value is not None and figures.get("others_cores", 0.0) <= TOO_MUCH:
                values.setdefault(name, {})[index] = value
    ratios = {}
    for name in values:
        both = [index for index in values.get(base, {}) if index in values[name] and values[name][index] and values[base][index]]
        if name == base or not both:
            continue
        better = [values[base][index] / values[name][index] for index in both]
        better = better if is_more_better(figure) else [1 / ratio for ratio in better]
        ratios[name] = {"median": statistics.median(better), "min": min(better), "max": max(better), "n_rounds": len(better)}
    return {
        "workload": workload,
        "figure": figure,
        "medians": {name: statistics.median(by_round.values()) for name, by_round in values.items()},
        "ratios": ratios,
        "best": min(ratios, key=lambda name: ratios[name]["median"]) if ratios else None,
    }


def _number(figure: str, value: float | None) -> str:
    if value is None:
        return "-"
    if figure.endswith("_bytes"):
        return f"{value / 1e6:.0f} MB"
    if figure.endswith("_per_s"):
        return f"{value:.1f}"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def _ratio(ratio: dict[str, Any] | None) -> str:
    """Median, range, and the number of rounds that it rests on."""
    return "-" if ratio is None else f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}, {ratio['n_rounds']})"
