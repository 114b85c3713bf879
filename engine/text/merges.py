"""The merge list behind a SentencePiece BPE vocabulary, which states scores only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_Hashes = NDArray[np.uint64]
_Ids = NDArray[np.int64]

_BASE = 0x9E3779B97F4A7C15
_SCATTER = np.uint64(0xD6E8FEB86659FD93)
_TABLE_BITS = 22


def merges_by_score(tokens: list[str], scores: list[float], ordinary: list[int]) -> list[tuple[str, str]]:
    """Every way to join two of the `ordinary` tokens into a third, the best-scored result first.

    SentencePiece merges the neighbours whose joined text has the best score, leftmost first. A list of pairs ranked
    by the score of their result does the same: inside one token's text the merges before the last do not depend on
    what surrounds it, so only one of its pairs ever comes up, and the order among them does not matter.

    A quarter of a million tokens have over a million cuts. Both halves of all of them are looked up at once by
    rolling hash: with prefix sums S[i] = sum of c[k] * B**k for k < i, the text from i to j hashes to
    (S[j] - S[i]) / B**i, modulo 2**64 (B is odd, so it has an inverse).
    """
    if not ordinary:
        return []
    ids = np.array(ordinary)[np.argsort(-np.array(scores)[ordinary], kind="stable")]
    texts = [tokens[i] for i in ids.tolist()]
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    hash_of = _substring_hashes("".join(texts))
    index = _Index(hash_of(starts, ends))

    whole = np.repeat(np.arange(len(texts)), np.maximum(lengths - 1, 0))
    cuts = np.delete(np.arange(ends[-1]), starts[lengths > 0])
    left, found = index.find(hash_of(starts[whole], cuts))
    whole, cuts, left = whole[found], cuts[found], left[found]
    right, found = index.find(hash_of(cuts, ends[whole]))
    names = np.array(texts, dtype=object)
    return list(zip(names[left[found]].tolist(), names[right[found]].tolist(), strict=True))


def _substring_hashes(text: str) -> Callable[[_Ids, _Ids], _Hashes]:
    """A function of (starts, ends) that hashes these parts of `text`, as uint64."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    codes = (codes + np.uint64(1)) * _SCATTER
    codes = (codes ^ (codes >> np.uint64(32))) * _SCATTER
    powers, inverses = (_powers(base, len(codes)) for base in (_BASE, pow(_BASE, -1, 2**64)))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(codes * powers[:-1])])
    return lambda starts, ends: (sums[ends] - sums[starts]) * inverses[starts]


def _powers(base: int, n: int) -> _Hashes:
    """base**0 .. base**n modulo 2**64."""
    factors = np.full(n + 1, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)


class _Index:
    """Position of a hash among `hashes`: a direct-mapped table answers most look-ups with one read, a sorted copy the rest."""

    def __init__(self, hashes: _Hashes) -> None:
        self._hashes = hashes
        self._order = np.argsort(hashes)
        self._sorted = hashes[self._order]
        self._table = np.full(1 << _TABLE_BITS, -1, np.int32)
        self._table[self._slot(hashes)] = np.arange(len(hashes), dtype=np.int32)

    def find(self, wanted: _Hashes) -> tuple[_Ids, NDArray[np.bool_]]:
        """For each wanted hash its position, and whether there is one."""
        positions = self._table[self._slot(wanted)].astype(np.int64)
        found = (positions >= 0) & (self._hashes[positions] == wanted)
        rest = np.flatnonzero(~found & (positions >= 0))
        at = np.minimum(np.searchsorted(self._sorted, wanted[rest]), len(self._sorted) - 1)
        positions[rest] = self._order[at]
        found[rest] = self._sorted[at] == wanted[rest]
        return positions, found

    @staticmethod
    def _slot(hashes: _Hashes) -> NDArray[np.int64]:
        return (hashes >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)
