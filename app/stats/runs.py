"""The block map as runs of like neighbours, and what changed between two maps. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from app.stats.frames import Patch, Run


def encode(states: bytes, owners: Sequence[int]) -> tuple[Run, ...]:
    """Run-length encode one state and one owner per block. O(blocks)."""
    if len(states) != len(owners):
        raise ValueError(f"{len(states)} block states but {len(owners)} owners")
    return tuple(Run(state, owner, sum(1 for _ in group)) for (state, owner), group in groupby(zip(states, owners, strict=True)))


def diff(old: Sequence[Run], new: Sequence[Run]) -> tuple[Patch, ...] | None:
    """Patches that turn `old` into `new`; None if the maps differ in length. O(runs)."""
    if sum(run.count for run in old) != sum(run.count for run in new):
        return None
    patches: list[Patch] = []
    for start, count, before, after in _overlay(old, new):
        if before.state == after.state and before.owner == after.owner:
            continue
        last = patches[-1] if patches else None
        if last and last.start + last.count == start and (last.state, last.owner) == (after.state, after.owner):
            patches[-1] = Patch(last.start, last.count + count, after.state, after.owner)
        else:
            patches.append(Patch(start, count, after.state, after.owner))
    return tuple(patches)


def _overlay(old: Sequence[Run], new: Sequence[Run]) -> Iterator[tuple[int, int, Run, Run]]:
    """(start, count, old run, new run) of each stretch in which neither map changes. Both have the same length."""
    start = i = j = 0
    left_old = old[0].count if old else 0
    left_new = new[0].count if new else 0
    while i < len(old) and j < len(new):
        count = min(left_old, left_new)
        yield start, count, old[i], new[j]
        start += count
        left_old -= count
        left_new -= count
        if left_old == 0:
            i += 1
            left_old = old[i].count if i < len(old) else 0
        if left_new == 0:
            j += 1
            left_new = new[j].count if j < len(new) else 0
