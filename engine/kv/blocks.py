"""BlockPool: the blocks of KV memory, their reference counts, and the index of those whose contents are known.

A block with a key and no references is *cached*: it stands in a free queue and can be found again until the queue's head
reaches it. There are two, each least recently used first: blocks that somebody found again (and with them all that lie before
them in their prefix) are taken only after those that nobody did, so that calls that are never repeated cannot push out a
conversation that goes on. What is computed again soon after it was evicted counts as found again, else a conversation that once
lost its blocks would lose them each time. The second queue is bounded: what was of use long ago is treated as the rest again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

PROTECTED_SHARE = 0.8
"""Most of the blocks that may be kept because they were found again."""


class Block:
    """One block: `refs` tables hold it; `key` names its contents once it is full and committed."""

    __slots__ = ("id", "kept", "key", "next", "prev", "queue", "refs", "reused")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.reused = False
        """Whether somebody found its content again."""
        self.queue: FreeQueue | None = None
        self.kept = True
        """Whether its content is worth a copy in another tier when the block is taken."""
        self.refs = 0
        self.key: bytes | None = None
        self.prev: Block | None = None
        self.next: Block | None = None


class FreeQueue:
    """Doubly linked queue of unreferenced blocks: taken at the head, given back at the tail, removed anywhere in O(1)."""

    def __init__(self) -> None:
        self._head = Block(-1)
        self._tail = Block(-1)
        self._head.next = self._tail
        self._tail.prev = self._head
        self.size = 0

    def append(self, block: Block) -> None:
        self._link(self._tail.prev, block, self._tail)

    def prepend(self, block: Block) -> None:
        self._link(self._head, block, self._head.next)

    def _link(self, before: Block, block: Block, after: Block) -> None:
        before.next = after.prev = block
        block.prev, block.next, block.queue = before, after, self
        self.size += 1

    def remove(self, block: Block) -> None:
        block.prev.next = block.next
        block.next.prev = block.prev
        block.prev = block.next = block.queue = None
        self.size -= 1

    def pop(self) -> Block:
        block = self._head.next
        self.remove(block)
        return block

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not self._tail:
            yield block
            block = block.next


class BlockPool:
    """All blocks of one KV group. Not thread-safe: only the engine thread touches it.

    on_evict(block, key): a cached block is about to be given to a new owner, who has not written to it yet.
    """

    def __init__(
        self,
        n_blocks: int,
        on_evict: Callable[[Block, bytes], None] = lambda block, key: None,
        *,
        protected_share: float = PROTECTED_SHARE,
    ) -> None:
        self.blocks = [Block(i) for i in range(n_blocks)]
        self._once = FreeQueue()
        self._again = FreeQueue()
        self._most_protected = int(n_blocks * protected_share)
        self._missed: dict[bytes, None] = {}
        """Keys of the blocks evicted last, as many as there are blocks; oldest first."""
        self.index: dict[bytes, Block] = {}
        self.n_evicted = 0
        self._on_evict = on_evict
        for block in self.blocks:
            self._once.append(block)

    @property
    def n_free(self) -> int:
        """Blocks that can be allocated now, cached ones included."""
        return self._once.size + self._again.size

    def free_blocks(self) -> Iterator[Block]:
        """In the order in which they are taken."""
        return chain(self._once, self._again)

    def allocate(self, n: int) -> list[Block]:
        """Take n blocks, each with refs 1 and no key; the caller has checked n_free. Evicts cached blocks."""
        assert n <= self.n_free, f"allocate({n}) with {self.n_free} free blocks"
        taken = []
        for _ in range(n):
            block = (self._once if self._once.size else self._again).pop()
            if block.key is not None:
                key, block.key = block.key, None
                del self.index[key]
                self.n_evicted += 1
                self._missed[key] = None
                if len(self._missed) > len(self.blocks):
                    del self._missed[next(iter(self._missed))]
                self._on_evict(block, key)
            block.refs = 1
            block.kept, block.reused = True, False
            taken.append(block)
        return taken

    def find(self, key: bytes) -> Block | None:
        return self.index.get(key)

    def acquire(self, block: Block) -> None:
        """Add a reference; a cached block leaves its queue, and counts as found again."""
        if block.refs == 0:
            block.queue.remove(block)
            block.kept = block.reused = True
        block.refs += 1

    def release(self, block: Block) -> None:
        """Drop a reference; at zero the block is free: cached if it has a key, else the next to be taken."""
        assert block.refs > 0, f"block {block.id} released without a reference"
        block.refs -= 1
        if block.refs == 0:
            if block.key is None:
                self._once.prepend(block)
            elif block.reused:
                self._again.append(block)
                if self._again.size > self._most_protected:
                    self._once.append(self._again.pop())
            else:
                self._once.append(block)

    def publish(self, block: Block, key: bytes) -> Block:
        """Name a full, committed block. Returns the block that the index holds under this key, which can be another one."""
        known = self.index.setdefault(key, block)
        if known is block:
            block.key = key
            if key in self._missed:
                del self._missed[key]
                block.reused = True
        return known

    def unpublish(self, block: Block) -> None:
        """Take a block's name away: nobody finds it any more, and if it is free, it is the next to be taken."""
        del self.index[block.key]
        block.key = None
        if block.refs == 0:
            block.queue.remove(block)
            self._once.prepend(block)

    def evict_cached(self) -> int:
        """Forget every cached block that no table holds; returns how many."""
        cached = [block for block in self.free_blocks() if block.key is not None]
        for block in cached:
            self.unpublish(block)
        self.n_evicted += len(cached)
        return len(cached)

    def check(self, tables: Iterable[list[int]]) -> None:
        """Assert laws a and the half of b that needs no tokens, given every block table in use."""
        occurrences = Counter(block_id for table in tables for block_id in table)
        for block in self.blocks:
            assert block.refs == occurrences[block.id], f"block {block.id}: refs {block.refs}, in {occurrences[block.id]} tables"
        queued = [block.id for block in self.free_blocks()]
        assert len(queued) == self.n_free and self._again.size <= self._most_protected
        assert sorted(queued) == [block.id for block in self.blocks if block.refs == 0], "free queue and refs disagree"
        for key, block in self.index.items():
            assert block.key == key, f"block {block.id} is indexed under another key"
        n_keyed = sum(block.key is not None for block in self.blocks)
        assert n_keyed == len(self.index), "a block has a key that is not indexed"
