"""Block maps of any length brought to a given number of places. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tui.feed.model import CACHED, FREE, PINNED, SHARED, USED, Run

LEVELS = 4


class Place(NamedTuple):
    """What one place of the map shows: one block, or several neighbours."""

    state: int
    owner: int
    """uid of the request that holds most of it; -1 for none."""
    level: int
    """How full of that state, 1 to LEVELS; LEVELS where it stands for one block."""


EMPTY = Place(FREE, -1, LEVELS)


def blocks_per_place(n_blocks: int, n_places: int) -> int:
    """The fewest blocks that a place must stand for."""
    return max(1, -(-n_blocks // max(1, n_places)))


def places(runs: Sequence[Run], per_place: int) -> list[Place]:
    """One Place for each `per_place` neighbouring blocks. O(runs + places).

    Where blocks differ, use wins over cache and cache over emptiness, so that a single block in use is never lost.
    """
    if per_place == 1:
        return [place for run in runs for place in [Place(run.state, run.owner, LEVELS)] * run.count]
    result: list[Place] = []
    pending: list[Run] = []
    room = per_place
    for run in runs:
        left = run.count
        if pending or left < per_place:
            taken = min(left, room)
            pending.append(Run(run.state, run.owner, taken))
            left -= taken
            room -= taken
            if room == 0:
                result.append(_blend(pending))
                pending, room = [], per_place
        whole, rest = divmod(left, per_place)
        result += [Place(run.state, run.owner, LEVELS)] * whole
        if rest:
            pending.append(Run(run.state, run.owner, rest))
            room = per_place - rest
    if pending:
        result.append(_blend(pending))
    return result


def _blend(runs: Sequence[Run]) -> Place:
    total = sum(run.count for run in runs)
    by_state: Counter[int] = Counter()
    by_owner: Counter[int] = Counter()
    for run in runs:
        by_state[run.state] += run.count
        if run.state in (USED, SHARED):
            by_owner[run.owner] += run.count
    busy = by_state[USED] + by_state[SHARED]
    if busy:
        state = SHARED if by_state[SHARED] * 2 >= busy else USED
        return Place(state, by_owner.most_common(1)[0][0], _level(busy, total))
    for state in (PINNED, CACHED):
        if by_state[state]:
            return Place(state, -1, _level(by_state[state], total))
    del by_state[FREE], by_state[PINNED], by_state[CACHED]
    if by_state:  # states that only a newer server knows
        return Place(max(by_state), -1, LEVELS)
    return EMPTY


def _level(part: int, total: int) -> int:
    return max(1, round(LEVELS * part / total))
