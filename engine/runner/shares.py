"""How the memory of the KV cache is shared out among a model's groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from engine.kv.groups import KVGroup

WINDOW_SHARE = 4
"""A group with a window gets one block for so many of a group of all tokens. A conversation of 4,000 tokens under a window of 512
needs an eighth at its end, and as much where it may branch."""
LEAST_STATES, KEPT_STATES = 4, 32
"""States for one answer and for what it began with; states kept for others besides two for each answer."""
LEAST_HOST_STATES = 2
_MOST = 1 << 24
"""Blocks of a group: no memory has as many."""


class Shares:
    """The first group that is not recurrent has a block for each block of tokens; the others need not keep all."""

    def __init__(self, groups: Sequence[KVGroup], *, block_size: int, max_num_seqs: int, chunk: int) -> None:
        """chunk: most tokens of one sequence in a step."""
        self._groups = groups
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        # Another one can begin while one runs.
        self._least = [2 * group.most_held(_MOST * block_size, chunk, block_size) if group.window else 0 for group in groups]

    def window(self, n_bytes: int, per_position: int = 0, *, for_one: bool = False) -> int:
        """Tokens of the longest sequence for which n_bytes are enough, with per_position bytes beside its blocks.

        for_one: with nothing left for others and for what they begin with.
        """
        position_bytes = per_position * self._block_size
        at = (LEAST_STATES, _MOST) if for_one else (self._n_states(n_bytes), WINDOW_SHARE)
        return self._block_size * self._most_within(n_bytes, lambda n: self._n_bytes(self._counts(n, *at)) + n * position_bytes)

    def _n_states(self, n_bytes: int) -> int:
        """As many as answers, and what they begin with, have use for, in half of n_bytes."""
        states = next((group for group in self._groups if group.recurrent), None)
        if states is None:
            return 0
        room = n_bytes if len(self._groups) == 1 else n_bytes // 2
        return max(LEAST_STATES, min(2 * self._max_num_seqs + KEPT_STATES, room // states.block_bytes))

    def blocks(self, n_bytes: int, window: int) -> list[int]:
        """Of each group, in n_bytes or less: no more than max_num_seqs sequences of `window` tokens have use for.

        Room for others, and for states of others, gives way before a sequence of `window` tokens does.
        """
        n_states = self._n_states(n_bytes)
        n_needed = -(-window // self._block_size)
        counts: list[int] = []
        for states_now, share in ((n_states, WINDOW_SHARE), (n_states, _MOST), (min(n_states, LEAST_STATES), _MOST)):
            n = self._most_within(n_bytes, lambda n, at=(states_now, share): self._n_bytes(self._counts(n, *at)))
            counts = self._counts(min(n, self._max_num_seqs * n_needed), states_now, share)
            if n >= n_needed:
                break
        return counts

    def host_blocks(self, host_bytes: int, counts: Sequence[int]) -> list[int]:
        """Of each group, in host memory: shares as of the device, but enough of each for the end of one prefix, or none."""
        if len(counts) == 1:
            return [host_bytes // self._groups[0].block_bytes]
        least = [-(-group.window // self._block_size) + 1 if group.window else LEAST_HOST_STATES for group in self._groups]
        room = host_bytes - self._n_bytes(least)
        if room < 0:
            return [0] * len(counts)
        total = self._n_bytes(counts)
        return [n + room * count // total for n, count in zip(least, counts, strict=True)]

    @staticmethod
    def _most_within(n_bytes: int, cost: Callable[[int], int]) -> int:
        return max(0, bisect_right(range(_MOST), n_bytes, key=cost) - 1)

    def _counts(self, n: int, n_states: int, share: int = _MOST) -> list[int]:
        """Of each group, where the first has n blocks."""
        first = next((g for g, group in enumerate(self._groups) if not group.recurrent), None)
        return [
            n_states if group.recurrent else n if g == first else min(n, max(self._least[g], n // share))
            for g, group in enumerate(self._groups)
        ]

    def _n_bytes(self, counts: Sequence[int]) -> int:
        return sum(n * group.block_bytes for n, group in zip(counts, self._groups, strict=True))
