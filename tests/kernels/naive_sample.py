"""The sampling operators written a second time from their contract: over Python lists, integers and sorted values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

UNITS = 1 << 43
COEFFICIENTS = (1.0, 0.6931472, 0.24022648, 0.055503324, 0.009618438, 0.0013398901, 0.00015353342)


def weights(tempered: np.ndarray) -> list[int]:
    """2^tempered in units of 2^-43, by Horner's rule on float32, one operation at a time."""
    x = np.maximum(tempered, np.float32(-46))
    whole = np.rint(x)
    fraction = x - whole
    result = np.zeros_like(x)
    for coefficient in reversed(COEFFICIENTS):
        result = result * fraction + np.float32(coefficient)
    assert result.dtype == np.float32
    return [round(math.ldexp(float(value), int(power)) * UNITS) for value, power in zip(result, whole, strict=True)]


def sample(logits: Tensor, draws: Tensor | None = None, numbers: Tensor | None = None) -> Tensor:
    hows = [(0.0, 0.0, 0.0, 1.0)] * len(logits) if draws is None else draws.tolist()
    places = [0.0] * len(logits) if numbers is None else numbers.tolist()
    return torch.tensor([_token(*row) for row in zip(logits.numpy(), hows, places, strict=True)], dtype=torch.int64)


def _token(row: np.ndarray, how: Sequence[float], number: float) -> int:
    values = row.tolist()
    if any(map(math.isnan, values)) or math.isinf(max(values)):
        return -1
    temperature, floor, top_k, top_p = how
    if temperature == 0:
        return values.index(max(values))
    with np.errstate(over="ignore"):
        tempered = (row - row.max()) * np.float32(1.4426950408889634 / temperature)
    shares, tempered = weights(tempered), tempered.tolist()
    left = {i for i, t in enumerate(tempered) if t >= float(np.float32(floor))}
    rising = sorted(tempered)
    if 1 <= top_k < len(rising):
        left = {i for i in left if tempered[i] >= rising[-int(top_k)]}
    if top_p < 1 and left:
        wanted = top_p * float(sum(shares[i] for i in left))
        likeliest_first = sorted(left, key=lambda i: -tempered[i])
        for i, mass in zip(likeliest_first, accumulate(shares[i] for i in likeliest_first), strict=True):
            if float(mass) >= wanted:
                left = {j for j in left if tempered[j] >= tempered[i]}
                break
    total = sum(shares[i] for i in left)
    target = min(int(number * float(total)), total - 1)
    for i in sorted(left):
        if target < shares[i]:
            return i
        target -= shares[i]
    return -1


def penalize(
    logits: Tensor, seen: Tensor, repetition: float, output: Tensor, counts: Tensor, frequency: float, presence: float
) -> None:
    for i in seen.tolist():
        logits[i] *= 1 / repetition if logits[i] > 0 else repetition
    for i, count in zip(output.tolist(), counts.tolist(), strict=True):
        logits[i] -= frequency * count + presence


def logprobs(logits: Tensor, ids: Tensor, n_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = [_logprobs(row, i, n_top) for row, i in zip(logits.tolist(), ids.tolist(), strict=True)]
    values, ranks, top_values, top_ids = zip(*rows, strict=True) if rows else ([], [], [], [])
    return (
        torch.tensor(values, dtype=torch.float32),
        torch.tensor(ranks, dtype=torch.int64),
        torch.tensor(top_values, dtype=torch.float32).view(len(rows), n_top),
        torch.tensor(top_ids, dtype=torch.int64).view(len(rows), n_top),
    )


def _logprobs(row: list[float], token_id: int, n_top: int) -> tuple[float, int, list[float], list[int]]:
    if any(map(math.isnan, row)) or math.isinf(max(row)):
        return math.nan, 1, [math.nan] * n_top, [*range(n_top)]
    best = max(row)
    scale = best + math.log(math.fsum(math.exp(x - best) for x in row))
    top = sorted(range(len(row)), key=lambda i: (-row[i], i))[:n_top]
    return row[token_id] - scale, 1 + sum(x > row[token_id] for x in row), [row[i] - scale for i in top], top


def uniform(keys: Tensor) -> Tensor:
    """Philox with numpy's wrapping integers."""
    seeds, choices, positions = (keys[:, i].numpy().astype(np.uint64) for i in range(3))
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    counter = [positions & low, positions >> half, choices & low, np.zeros_like(choices)]
    key = [seeds & low, seeds >> half]
    for i in range(10):
        a, b = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        k0, k1 = (key[j] + np.uint64(i * step) & low for j, step in enumerate((0x9E3779B9, 0xBB67AE85)))
        counter = [(b >> half) ^ counter[1] ^ k0, b & low, (a >> half) ^ counter[3] ^ k1, a & low]
    high, rest = counter[0] >> np.uint64(5), counter[1] >> np.uint64(6)
    return torch.from_numpy((high * np.uint64(1 << 26) + rest).astype(np.float64) / 2.0**53)
