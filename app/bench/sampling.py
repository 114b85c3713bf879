"""The engine's sampler by itself: how long it takes to draw a token for each row of logits."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch

from app.bench.operators import Timing
from app.bench.shapes import Shapes
from engine.sample.sampler import Sampler
from engine.types import Request, SamplingParams, Sequence

WAYS = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(temperature=0.8),
    "top_k 40, top_p 0.95": SamplingParams(temperature=0.8, top_k=40, top_p=0.95),
    "top_p 0.95": SamplingParams(temperature=0.8, top_p=0.95),
    "min_p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
}
_PASSES = 5
SOURCE = "engine"


def measure(shapes: Shapes, rows: tuple[int, ...]) -> Iterator[Timing]:
    """GB/s are those of reading the logits once. At most 64 rows: no step draws more."""
    sampler = Sampler(shapes.n_vocab)
    for n in (n for n in rows if n <= 64):
        logits = torch.randn(n, shapes.n_vocab) * 4
        for what, params in WAYS.items():
            seqs = [_sequence(i, params) for i in range(n)]
            passes = []
            with torch.inference_mode():
                for _ in range(_PASSES + 1):
                    began = time.perf_counter()
                    sampler.sample(logits, seqs)
                    passes.append(time.perf_counter() - began)
            seconds = statistics.median(passes[1:])
            yield Timing("sample", what, n, SOURCE, seconds, logits.nbytes / seconds * 1e-9, 0.0, "", 0.0)


def _sequence(i: int, params: SamplingParams) -> Sequence:
    """One whose text nobody asks for."""
    request = Request(str(i), [1], params)
    return Sequence(request, 0, [1, 2, 3], 1, seed=i, max_tokens=16, end_ids=frozenset(), text=None)  # type: ignore[arg-type]
