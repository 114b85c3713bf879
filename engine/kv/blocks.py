"""BlockPool: the blocks of KV memory, their reference counts, and the index of those whose contents are known.

A block with a key and no references is *cached*: it stands in the free queue and can be found again until the
queue's head reaches it. The queue is least recently used first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator


class Block:
    """One block: `refs` tables hold it; `key` names its contents once it is full and committed."""

    __slots__ = ("id", "key", "next", "prev", "refs")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
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
        block.prev, block.next = before, after
        self.size += 1

    def remove(self, block: Block) -> None:
        block.prev.next = block.next
        block.next.prev = block.prev
        block.prev = block.next = None
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
    """All blocks of one KV group. Not thread-safe: only the engine thread touches it."""

    def __init__(self, n_blocks: int) -> None:
        self.blocks = [Block(i) for i in range(n_blocks)]
        self.free_queue = FreeQueue()
        self.index: dict[bytes, Block] = {}
        self.n_evicted = 0
        for block in self.blocks:
            self.free_queue.append(block)

    @property
    def n_free(self) -> int:
        """Blocks that can be allocated now, cached ones included."""
        return self.free_queue.size

    def allocate(self, n: int) -> list[Block]:
        """Take n blocks, each with refs 1 and no key; the caller has checked n_free. Evicts cached blocks, oldest first."""
        assert n <= self.n_free, f"allocate({n}) with {self.n_free} free blocks"
        taken = []
        for _ in range(n):
            block = self.free_queue.pop()
            if block.key is not None:
                del self.index[block.key]
                block.key = None
                self.n_evicted += 1
            block.refs = 1
            taken.append(block)
        return taken

    def find(self, key: bytes) -> Block | None:
        return self.index.get(key)

    def acquire(self, block: Block) -> None:
        """Add a reference; a cached block leaves the free queue."""
        if block.refs == 0:
            self.free_queue.remove(block)
        block.refs += 1

    def release(self, block: Block) -> None:
        """Drop a reference; at zero the block is free: cached if it has a key, else the next to be taken."""
        assert block.refs > 0, f"block {block.id} released without a reference"
        block.refs -= 1
        if block.refs == 0:
            if block.key is None:
                self.free_queue.prepend(block)
            else:
                self.free_queue.append(block)

    def publish(self, block: Block, key: bytes) -> Block:
        """Name a full, committed block. Returns the block that the index holds under this key, which can be another one."""
        known = self.index.setdefault(key, block)
        if known is block:
            block.key = key
        return known

    def evict_cached(self) -> int:
        """Forget every cached block that no table holds; returns how many."""
        cached = [block for block in self.free_queue if block.key is not None]
        for block in cached:
            del self.index[block.key]
            block.key = None
        self.n_evicted += len(cached)
        return len(cached)

    def check(self, tables: Iterable[list[int]]) -> None:
        """Assert laws a and the half of b that needs no tokens, given every block table in use."""
        occurrences = Counter(block_id for table in tables for block_id in table)
        for block in self.blocks:
            assert block.refs == occurrences[block.id], f"block {block.id}: refs {block.refs}, in {occurrences[block.id]} tables"
        queued = [block.id for block in self.free_queue]
        assert len(queued) == self.free_queue.size
        assert sorted(queued) == [block.id for block in self.blocks if block.refs == 0], "free queue and refs disagree"
        for key, block in self.index.items():
            assert block.key == key, f"block {block.id} is indexed under another key"
        n_keyed = sum(block.key is not None for block in self.blocks)
        assert n_keyed == len(self.index), "a block has a key that is not indexed"
