"""How far a prompt is known: the deepest border of blocks at which every KV group has what computing on from there needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.kv.groups import KVGroup

Known = Callable[[int, int], bool]
"""(number of the group, number of the block) -> whether the content is known."""


def deepest(groups: Sequence[KVGroup], n_blocks: int, block_size: int, is_known: Known) -> int:
    """Blocks of tokens, of the first n_blocks, up to which a prompt is known."""
    for g, group in enumerate(groups):
        if group.keeps_all:
            n_blocks = next((i for i in range(n_blocks) if not is_known(g, i)), n_blocks)
    others = [(g, group) for g, group in enumerate(groups) if not group.keeps_all]
    before = -1
    while n_blocks and n_blocks != before:
        before = n_blocks
        for g, group in others:
            n_blocks = _border(g, group, n_blocks, block_size, is_known)
    return n_blocks


def _border(g: int, group: KVGroup, n_blocks: int, block_size: int, is_known: Known) -> int:
    """The deepest border, n_blocks or before, that this group agrees to."""
    if group.recurrent:
        return next((n for n in range(n_blocks, 0, -1) if is_known(g, n - 1)), 0)
    i = n_blocks
    while i > group.first_needed(n_blocks * block_size, block_size):
        i -= 1
        if not is_known(g, i):
            n_blocks = i
    return n_blocks


def needed(group: KVGroup, n_blocks: int, block_size: int) -> range:
    """Blocks of tokens whose content a group needs at a border; a state is that at the end of the last one."""
    if group.recurrent:
        return range(max(0, n_blocks - 1), n_blocks)
    return range(group.first_needed(n_blocks * block_size, block_size), n_blocks)
