"""Pins: blocks of prompts that stay in the cache although no table holds them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.kv.blocks import Block
from engine.kv.match import deepest, needed
from engine.kv.memory import GroupMemory
from engine.types import Sequence as Answer

PINNED_SHARE = 0.5
"""Most of the blocks of a group that may be pinned."""


class Pinned(NamedTuple):
    """What a pin keeps, and what that costs."""

    n_tokens: int
    n_blocks: int
    n_bytes: int


class Pins:
    """By the uid of the request that made them, the oldest first. Not thread-safe: only the engine thread touches it."""

    def __init__(self, memories: Sequence[GroupMemory], block_size: int) -> None:
        self._memories = memories
        self._block_size = block_size
        self._pins: dict[int, tuple[int, list[tuple[GroupMemory, Block]]]] = {}
        """Uid -> (tokens, blocks)"""

    def __bool__(self) -> bool:
        return bool(self._pins)

    def __iter__(self) -> Iterator[int]:
        return iter(self._pins)

    def __getitem__(self, uid: int) -> Pinned:
        n_tokens, blocks = self._pins[uid]
        return Pinned(n_tokens, len(blocks), sum(memory.group.block_bytes for memory, _ in blocks))

    def why_not(self, keys: Sequence[bytes]) -> str | None:
        """What keeps a prefix from being pinned, whose full blocks have these keys, in words."""
        if not keys:
            return f"A prefix of less than a block ({self._block_size} tokens) cannot be pinned."
        for memory in self._memories:
            pinned, most = self._pinned(memory), int(len(memory.pool.blocks) * PINNED_SHARE)
            found = [memory.pool.find(keys[i]) for i in needed(memory.group, len(keys), self._block_size)]
            n_blocks = sum(block is None or block.id not in pinned for block in found)
            if len(pinned) + n_blocks > most:
                return f"{n_blocks} blocks cannot be pinned: {len(pinned)} are, and at most {most} may be."
        return None

    def n_blocks(self, memory: GroupMemory) -> int:
        """Of a group; those that several pins share counted once."""
        return len(self._pinned(memory))

    def _pinned(self, memory: GroupMemory) -> set[int]:
        return {block_id for table in self.tables(memory) for block_id in table}

    def tables(self, memory: GroupMemory) -> list[list[int]]:
        """Of a group: the blocks of each pin."""
        return [[block.id for where, block in blocks if where is memory] for _, blocks in self._pins.values()]

    def pin(self, seq: Answer) -> bool:
        """Keep what a prompt that goes on from this one's needs. It was computed just now; False if it is gone already."""
        keys, size = seq.block_keys[: min(seq.n_prompt // self._block_size, seq.n_published)], self._block_size
        groups = [memory.group for memory in self._memories]
        n = deepest(groups, len(keys), size, lambda g, i: self._memories[g].pool.find(keys[i]) is not None)
        blocks = [(memory, memory.pool.find(keys[i])) for memory in self._memories for i in needed(memory.group, n, size)]
        for memory, block in blocks:
            memory.pool.acquire(block)
        if blocks:
            self._pins[seq.request.uid] = n * size, blocks
        return bool(blocks)

    def unpin(self, uid: int) -> int:
        """Let them go, to be evicted in their turn; returns how many, 0 where there is no such pin."""
        _, blocks = self._pins.pop(uid, (0, []))
        for memory, block in reversed(blocks):
            memory.pool.release(block)
        return len(blocks)
