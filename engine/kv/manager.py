"""KVManager: gives sequences their blocks, finds cached prefixes, publishes what was computed, forks and frees."""

from __future__ import annotations

from engine.kv.blocks import Block, BlockPool
from engine.kv.hashing import block_keys, root_key
from engine.types import Sequence


class KVManager:
    """Block tables of all sequences over one BlockPool. Not thread-safe: only the engine thread touches it.

    `extras` go into every block key (see hashing.root_key); the request's salt is added per sequence.
    """

    def __init__(self, n_blocks: int, block_size: int, *, enable_caching: bool, extras: dict[str, str | int]) -> None:
        self.pool = BlockPool(n_blocks)
        self.block_size = block_size
        self.enable_caching = enable_caching
        self._extras = extras
        self._pending: dict[bytes, int] = {}
        self._copied: list[Block] = []

    # Keys ------------------------------------------------------------------------------------------------------

    def keys(self, seq: Sequence) -> list[bytes]:
        """Keys of the full blocks of the sequence's tokens, extended as far as its tokens go."""
        size, tokens, keys = self.block_size, seq.token_ids, seq.block_keys
        if len(tokens) // size > len(keys):
            parent = keys[-1] if keys else root_key({**self._extras, "salt": seq.request.cache_salt})
            keys += block_keys(parent, tokens[len(keys) * size :], size)
        return keys

    def _matchable(self, seq: Sequence) -> int:
        """Blocks that a lookup may use: at least one token stays to be computed, and asked-for prompt logprobs need them all."""
        if not self.enable_caching:
            return 0
        if seq.prompt_logprobs is not None and len(seq.prompt_logprobs) < seq.n_prompt:
            return 0
        return (len(seq.token_ids) - 1) // self.block_size

    def match(self, seq: Sequence) -> list[Block]:
        """The longest cached prefix of a sequence without blocks."""
        found = []
        n_matchable = self._matchable(seq)
        for key in self.keys(seq)[:n_matchable] if n_matchable else ():
            block = self.pool.find(key)
            if block is None:
                break
            found.append(block)
        return found

    def is_being_computed(self, seq: Sequence, n_matched: int) -> bool:
        """Whether a running sequence is about to publish the block that this one would have to compute next."""
        return n_matched < self._matchable(seq) and self.keys(seq)[n_matched] in self._pending

    # Blocks of a sequence --------------------------------------------------------------------------------------

    def admit(self, seq: Sequence, matched: list[Block], headroom: int) -> bool:
        """Give a sequence the matched blocks and room for all its tokens, or change nothing and return False.

        Room for the whole prompt at once means that half-loaded prompts never wait for each other's blocks.
        """
        assert not seq.block_ids and seq.n_computed == 0
        n_new = -(-len(seq.token_ids) // self.block_size) - len(matched)
        n_revived = sum(block.refs == 0 for block in matched)
        if n_new + n_revived + headroom > self.pool.n_free:
            return False
        for block in matched:
            self.pool.acquire(block)
        blocks = matched + self.pool.allocate(n_new)
        seq.block_ids = [block.id for block in blocks]
        seq.n_computed = len(matched) * self.block_size
        seq.n_published = len(matched)
        if self.enable_caching:
            for key in self.keys(seq)[len(matched) :]:
                self._pending[key] = self._pending.get(key, 0) + 1
            seq.n_pending_end = len(seq.block_keys)
        return True

    def reserve(self, seq: Sequence, n_tokens: int) -> list[tuple[int, int]] | None:
        """Make the next n_tokens positions writable: new blocks at the end, copies of blocks that others hold or may find.

        Returns the (source, destination) copies to do before writing, or None (nothing changed) when blocks run out. Sources
        stay referenced until `release_copied`, so that no plan uses one as a destination.
        """
        size = self.block_size
        first, end = seq.n_computed // size, -(-(seq.n_computed + n_tokens) // size)
        if end == first + 1 == len(seq.block_ids):  # most decodes: one more token in the last block
            block = self.pool.blocks[seq.block_ids[first]]
            if block.refs == 1 and block.key is None:
                return []
        shared = [
            i
            for i in range(first, min(end, len(seq.block_ids)))
            if (block := self.pool.blocks[seq.block_ids[i]]).refs > 1 or block.key is not None
        ]
        n_new = max(0, end - len(seq.block_ids))
        if n_new + len(shared) > self.pool.n_free:
            return None
        copies = []
        for i, fresh in zip(shared, self.pool.allocate(len(shared)), strict=True):
            source = self.pool.blocks[seq.block_ids[i]]
            copies.append((source.id, fresh.id))
            seq.replace_block(i, fresh.id)
            self._copied.append(source)
        seq.block_ids += [block.id for block in self.pool.allocate(n_new)]
        return copies

    def release_copied(self) -> None:
        """The plan is complete: drop this table's reference to each block that was copied from."""
        for block in self._copied:
            self.pool.release(block)
        self._copied = []

    def publish(self, seq: Sequence) -> None:
        """Name the sequence's blocks that are full of computed, committed tokens; an equal known block replaces ours."""
        if not self.enable_caching:
            return
        keys = self.keys(seq)
        while (seq.n_published + 1) * self.block_size <= seq.n_computed:
            i = seq.n_published
            block = self.pool.blocks[seq.block_ids[i]]
            known = self.pool.publish(block, keys[i])
            if known is not block:
                self.pool.acquire(known)
                seq.replace_block(i, known.id)
                self.pool.release(block)
            if i < seq.n_pending_end:
                self._forget_pending(keys[i])
            seq.n_published += 1

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let the child share the parent's blocks up to its own n_computed + 1 tokens. Takes no block, so it cannot fail."""
        n_blocks = -(-len(child.token_ids) // self.block_size)
        child.block_ids = parent.block_ids[:n_blocks]
        child.block_keys = parent.block_keys[: len(child.token_ids) // self.block_size]
        child.n_published = min(parent.n_published, child.n_computed // self.block_size)
        for block_id in child.block_ids:
            self.pool.acquire(self.pool.blocks[block_id])

    def free(self, seq: Sequence) -> None:
        """Take all blocks back, the tail first, so that leaves are evicted before the roots they hang on."""
        for key in seq.block_keys[seq.n_published : seq.n_pending_end]:
            self._forget_pending(key)
        for block_id in reversed(seq.block_ids):
            self.pool.release(self.pool.blocks[block_id])
        seq.block_ids = []
        seq.n_computed = seq.n_published = seq.n_pending_end = 0

    def _forget_pending(self, key: bytes) -> None:
        if self._pending[key] == 1:
            del self._pending[key]
        else:
            self._pending[key] -= 1

    # Laws ------------------------------------------------------------------------------------------------------

    def check(self, sequences: list[Sequence]) -> None:
        """Assert laws a, b and c for all live sequences, and that what is announced as being computed is."""
        self.pool.check(seq.block_ids for seq in sequences)
        pending: dict[bytes, int] = {}
        for seq in sequences:
            assert seq.n_computed <= len(seq.token_ids)
            assert seq.n_published * self.block_size <= seq.n_computed
            assert len(seq.block_ids) * self.block_size >= seq.n_computed
            root = root_key({**self._extras, "salt": seq.request.cache_salt})
            expected = block_keys(root, seq.token_ids[: seq.n_published * self.block_size], self.block_size)
            published = [self.pool.blocks[block_id].key for block_id in seq.block_ids[: seq.n_published]]
            assert published == expected, "a published block's key does not follow from its tokens"
            for key in seq.block_keys[seq.n_published : seq.n_pending_end]:
                pending[key] = pending.get(key, 0) + 1
        assert pending == self._pending, "keys announced as being computed and running sequences disagree"
