"""How soon a prompt is answered that the server knew before it was started again: cold, warm, and after a restart."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.bench import load as client
from app.bench import peers
from app.bench.load import Load, Measure
from app.bench.process import Server, end
from engine.errors import PagewellError

OWN_TOKENS = 64
"""Of each request, behind the prefix that all share."""


@dataclass(slots=True)
class Times:
    """Seconds to the first token, one for each round."""

    n_tokens: int
    """Of the prefix."""
    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    restarted: list[float] = field(default_factory=list)
    n_cached: list[int] = field(default_factory=list)
    """Tokens that were found after the restart."""

    def result(self) -> dict[str, Any]:
        pairs = list(zip(self.cold, self.warm, self.restarted, strict=True))
        return {
            "n_tokens": self.n_tokens,
            "cold_s": statistics.median(self.cold),
            "warm_s": statistics.median(self.warm),
            "restarted_s": statistics.median(self.restarted),
            "restarted_over_warm": statistics.median(after / warm for _, warm, after in pairs),
            "restarted_over_cold": statistics.median(after / cold for cold, _, after in pairs),
            "n_cached": self.n_cached,
            "rounds": pairs,
        }


def measure(
    model: Path, lengths: tuple[int, ...], rounds: int, threads: int, folder: Path, say: Callable[[str], None]
) -> list[Times]:
    """Each round in a home of its own: what one kept is unknown to the next. Raises PagewellError when a server fails."""
    times = [Times(n) for n in lengths]
    for index in range(rounds):
        home = folder / f"round-{index + 1}"
        before = Server(peers.pagewell(), model, threads, home)
        try:
            measure = asyncio.run(_ready(before, index))
            for one in times:
                one.cold.append(_ask(before, measure, one.n_tokens, index, 0)[0])
                one.warm.append(_ask(before, measure, one.n_tokens, index, 1)[0])
        finally:
            end([before])
        after = Server(peers.pagewell(), model, threads, home)
        try:
            asyncio.run(_ready(after, index))
            for one in times:
                ttft_s, n_cached = _ask(after, measure, one.n_tokens, index, 2)
                one.restarted.append(ttft_s)
                one.n_cached.append(n_cached)
                cold, warm, again = (f"{seconds * 1e3:.0f} ms" for seconds in (one.cold[-1], one.warm[-1], ttft_s))
                say(f"{one.n_tokens:,} tokens: cold {cold}, warm {warm}, after a restart {again}, {n_cached:,} tokens known")
        finally:
            end([after])
    return times


async def _ready(server: Server, index: int) -> Measure:
    """Wait for it, and warm up what is not the cache."""
    await asyncio.to_thread(server.wait_ready)
    server.endpoint = replace(server.endpoint, model=await server.served_name())
    return await client.measure(server.endpoint, f"ready/{index}")


def _ask(server: Server, measure: Measure, n_tokens: int, index: int, turn: int) -> tuple[float, int]:
    """(seconds to the first token, tokens found in the cache) of a request that begins with the round's prefix."""
    load = Load(
        1, 1, measure.prompt_words(OWN_TOKENS), measure.words(n_tokens), 4,
        seed=f"restart/{index}", first_index=turn, prefix_seed=f"restart/{index}/{n_tokens}",
    )  # fmt: skip
    (answer,) = asyncio.run(client.run(server.endpoint, load))
    if answer.error is not None:
        raise PagewellError(f"A request failed: {answer.error}", "Look at the server's log.")
    return answer.ttft_s, answer.n_cached
