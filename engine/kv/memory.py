"""GroupMemory: where the blocks of one KV group are, on the device and in host memory, and what a plan copies between them."""

from __future__ import annotations

from typing import NamedTuple

from engine.kv.blocks import Block, BlockPool
from engine.kv.groups import KVGroup
from engine.kv.tiers.host import HostTier
from engine.types import Moves

DEMOTED_BYTES = 64 << 20
"""Copied to host memory by one plan at most: a long prompt that takes many cached blocks at once must not hold up others."""
LEAST_DEMOTIONS = 4


class Hit(NamedTuple):
    """A block whose content is known."""

    index: int
    """Its place in the block table."""
    key: bytes
    block: Block | None
    """None: only host memory has it."""


class GroupMemory:
    """Not thread-safe: only the engine thread touches it. Keys are the same for all groups of a model; each has its own index."""

    def __init__(self, group: KVGroup, first_slot: int, *, protected_share: float) -> None:
        """first_slot: number of its first slot of host memory; slots of all groups are numbered in one row."""
        self.group = group
        self.pool = BlockPool(group.n_blocks, self._demote, protected_share=protected_share)
        self.host = HostTier(group.n_host_blocks, first_slot)
        self.headroom = 0 if group.recurrent else max(1, group.n_blocks // 100)
        """Blocks that stay free when a sequence is let in beside others: those will need more."""
        self.n_demoted = self.n_promoted = 0
        """Blocks copied to and from host memory."""
        self._most_demotions = max(LEAST_DEMOTIONS, DEMOTED_BYTES // group.block_bytes)
        self._copies: list[tuple[int, int]] = []
        self._demotions: list[tuple[int, int]] = []
        self._promotions: list[tuple[int, int]] = []
        self._arriving: set[int] = set()
        """Blocks that the plan in the making promotes into."""
        self._held: list[Block] = []
        """Blocks that stay as they are until the plan is complete."""

    @property
    def is_promoting(self) -> bool:
        """Whether the plan in the making brings blocks from host memory."""
        return bool(self._promotions)

    def find(self, index: int, key: bytes) -> Hit | None:
        block = self.pool.find(key)
        return None if block is None and key not in self.host else Hit(index, key, block)

    def promote(self, slot: int, block: Block) -> None:
        """The plan copies this slot into a block that was allocated for it."""
        self._promotions.append((slot, block.id))
        self._arriving.add(block.id)
        self.n_promoted += 1

    def copy(self, source: Block, destination: Block) -> None:
        """The plan copies a block; the reference to the source that the caller had is given up once the plan is complete, so
        that no plan uses one as a destination."""
        self._copies.append((source.id, destination.id))
        self._held.append(source)

    def hold(self, block: Block) -> None:
        """Give up the caller's reference once the plan is complete."""
        self._held.append(block)

    def _demote(self, block: Block, key: bytes) -> None:
        """A cached block gets a new owner: keep its content, if there is room for it in host memory."""
        assert block.id not in self._arriving, "its content has not arrived yet"
        if block.kept and len(self._demotions) < self._most_demotions and (slot := self.host.store(key)) is not None:
            self._demotions.append((block.id, slot))
            self.n_demoted += 1

    def finish_plan(self, more_demotions: list[tuple[int, int]]) -> Moves:
        """The plan is complete: what has to be copied before it runs. Nothing is held for it any more."""
        assert self._arriving.isdisjoint(block_id for block_id, _ in more_demotions), "their content has not arrived yet"
        moves = Moves(tuple(self._demotions + more_demotions), tuple(self._promotions), tuple(self._copies))
        for block in self._held:
            self.pool.release(block)
        self._held, self._copies, self._demotions, self._promotions = [], [], [], []
        self._arriving.clear()
        self.host.release_pins()
        return moves

    def forget(self, key: bytes) -> None:
        """Nobody is to find this block any more, wherever it is."""
        block = self.pool.find(key)
        if block is not None:
            self.pool.unpublish(block)
        self.host.drop(key)

    def evict_cached(self) -> int:
        return self.pool.evict_cached() + self.host.clear()
