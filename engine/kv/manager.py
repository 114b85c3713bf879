"""KVManager: gives sequences their blocks, finds known prefixes, publishes what was computed, forks, puts aside and frees."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from engine.kv.blocks import PROTECTED_SHARE, Block, BlockPool
from engine.kv.connector import Connector
from engine.kv.exchange import Exchange
from engine.kv.hashing import block_keys, root_key
from engine.kv.host import HostTier
from engine.types import Moves, PutAside, Sequence

DEMOTED_BYTES = 64 << 20
"""Copied to host memory by one plan at most: a long prompt that takes many cached blocks at once must not hold up others."""
KEPT_TOKENS = 256
"""A prefix below this is computed sooner than a connector is asked, so it is not given to one."""


class Hit(NamedTuple):
    """A block whose content is known."""

    key: bytes
    block: Block | None
    """None: only host memory has it."""


class KVManager:
    """Block tables of all sequences over one BlockPool. Not thread-safe: only the engine thread touches it.

    `extras` go into every block key (see hashing.root_key); the request's salt is added per sequence. A cached block that
    has to leave the device is copied into one of n_host_blocks slots of host memory. Prefixes of sequences that have ended are
    given to the connector, which may have others; `post` runs a function on the engine thread, from any thread.
    """

    def __init__(
        self,
        n_blocks: int,
        block_size: int,
        *,
        enable_caching: bool,
        extras: dict[str, str | int],
        n_host_blocks: int = 0,
        block_bytes: int = 1,
        connector: Connector | None = None,
        post: Callable[[Callable[[], None]], None] = lambda operation: operation(),
        protected_share: float = PROTECTED_SHARE,
    ) -> None:
        self.pool = BlockPool(n_blocks, self._demote, protected_share=protected_share)
        self.host = HostTier(n_host_blocks)
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.pins: dict[int, list[Block]] = {}
        """Uid of a request -> blocks of its prompt, which stay although no table holds them; oldest first."""
        self.n_demoted = self.n_promoted = 0
        """Blocks copied to and from host memory."""
        self._extras = extras
        self._pending: dict[bytes, int] = {}
        self._copied: list[Block] = []
        self._demotions: list[tuple[int, int]] = []
        self._promotions: list[tuple[int, int]] = []
        self._arriving: set[int] = set()
        """Blocks that the plan in the making promotes into."""
        self._most_demotions = max(64, DEMOTED_BYTES // block_bytes)
        self.kept_tokens = KEPT_TOKENS
        self.exchange = Exchange(self.pool, self.host, connector, block_bytes, post) if connector is not None else None

    # Keys ------------------------------------------------------------------------------------------------------

    def keys(self, seq: Sequence) -> list[bytes]:
        """Keys of the full blocks of the sequence's tokens, extended as far as its tokens go."""
        size, tokens, keys = self.block_size, seq.token_ids, seq.block_keys
        if len(tokens) // size > len(keys):
            parent = keys[-1] if keys else self._root(seq)
            keys += block_keys(parent, tokens[len(keys) * size :], size)
        return keys

    def _root(self, seq: Sequence) -> bytes:
        """Without a cache keys are the sequence's own, and name only what was put aside of it."""
        own = {} if self.enable_caching else {"sequence": f"{seq.request.uid}/{seq.index}"}
        return root_key({**self._extras, **own, "salt": seq.request.cache_salt})

    def _matchable(self, seq: Sequence) -> int:
        """Blocks that a lookup may use: at least one token stays to be computed, and asked-for prompt logprobs need them all."""
        if not self.enable_caching and seq.put_aside is None:
            return 0
        if seq.prompt_logprobs is not None and len(seq.prompt_logprobs) < seq.n_prompt:
            return 0
        return (len(seq.token_ids) - 1) // self.block_size

    def match(self, seq: Sequence) -> list[Hit]:
        """The longest known prefix of a sequence without blocks: full ones, and behind them one that was put aside."""
        hits: list[Hit] = []
        n_matchable = self._matchable(seq)
        for key in self.keys(seq)[:n_matchable] if n_matchable else ():
            if (hit := self._find(key)) is None:
                break
            hits.append(hit)
        aside = seq.put_aside
        if aside is not None and n_matchable and len(hits) == aside.n_computed // self.block_size:
            hits += (hit,) if (hit := self._find(aside.key)) is not None else ()
        return hits

    def _find(self, key: bytes) -> Hit | None:
        block = self.pool.find(key)
        return None if block is None and key not in self.host else Hit(key, block)

    def n_known(self, seq: Sequence, hits: list[Hit]) -> int:
        """Tokens whose KV the hits hold."""
        aside = seq.put_aside
        if aside is not None and hits and hits[-1].key == aside.key:
            return min(aside.n_computed, len(seq.token_ids) - 1)  # its last token may have been computed, and its draw lost
        return len(hits) * self.block_size

    def is_being_computed(self, seq: Sequence, hits: list[Hit]) -> bool:
        """Whether a running sequence is about to publish the block that this one would have to compute next."""
        n = self.n_known(seq, hits) // self.block_size
        return n == len(hits) < self._matchable(seq) and self.keys(seq)[n] in self._pending

    # Blocks of a sequence --------------------------------------------------------------------------------------

    def admit(self, seq: Sequence, hits: list[Hit], headroom: int) -> bool:
        """Give a sequence the blocks of its hits and room for all its tokens, or change nothing and return False.

        Room for the whole prompt at once means that half-loaded prompts never wait for each other's blocks.
        """
        assert not seq.block_ids and seq.n_computed == 0
        here = [hit.block for hit in hits if hit.block is not None]
        n_new = -(-len(seq.token_ids) // self.block_size) - len(here)
        n_revived = sum(block.refs == 0 for block in here)
        if n_new + n_revived + headroom > self.pool.n_free:
            return False
        for block in here:
            self.pool.acquire(block)
        slots = [self.host.read(hit.key) if hit.block is None else -1 for hit in hits]  # before evictions need slots
        fresh = iter(self.pool.allocate(n_new))
        blocks = []
        for hit, slot in zip(hits, slots, strict=True):
            block = hit.block
            if block is None:
                block = next(fresh)
                self._promotions.append((slot, block.id))
                self._arriving.add(block.id)
                self.n_promoted += 1
                if self._is_shared(seq, hit.key):
                    self.pool.publish(block, hit.key)
            blocks.append(block)
        seq.n_computed = self.n_known(seq, hits)
        seq.block_ids = [block.id for block in (*blocks, *fresh)]
        self._forget_put_aside(seq)
        if self.enable_caching:
            seq.n_published = seq.n_computed // self.block_size
            for key in self.keys(seq)[seq.n_published :]:
                self._pending[key] = self._pending.get(key, 0) + 1
            seq.n_pending_end = len(seq.block_keys)
        return True

    def _is_shared(self, seq: Sequence, key: bytes) -> bool:
        """Whether others may find a block under this key."""
        return self.enable_caching and (seq.put_aside is None or key != seq.put_aside.key)

    def reserve(self, seq: Sequence, n_tokens: int) -> list[tuple[int, int]] | None:
        """Make the next n_tokens positions writable: new blocks at the end, copies of blocks that others hold or may find.

        Returns the (source, destination) copies to do before writing, or None (nothing changed) when blocks run out. Sources
        stay referenced until the plan is complete, so that no plan uses one as a destination.
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

    def finish_plan(self, *, idle: bool = False) -> Moves:
        """The plan is complete: what has to be copied between memories before it runs. Nothing is held for it any more."""
        if self.exchange is not None:
            copies = self.exchange.prepare(idle=idle)
            assert self._arriving.isdisjoint(block_id for block_id, _ in copies), "their content has not arrived yet"
            self._demotions += copies
        for block in self._copied:
            self.pool.release(block)
        self._copied = []
        moves = Moves(tuple(self._demotions), tuple(self._promotions))
        self._demotions, self._promotions = [], []
        self._arriving.clear()
        self.host.release_pins()
        return moves

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
        if self.enable_caching:
            child.block_keys = parent.block_keys[: len(child.token_ids) // self.block_size]
        child.n_published = min(parent.n_published, child.n_computed // self.block_size)
        for block_id in child.block_ids:
            self.pool.acquire(self.pool.blocks[block_id])

    @property
    def n_pinned(self) -> int:
        """Blocks that are pinned, those that several pins share counted once."""
        return len({block.id for blocks in self.pins.values() for block in blocks})

    def pin(self, seq: Sequence) -> int:
        """Keep the full blocks of a sequence's prompt; returns how many. It still holds them, and they are published."""
        n = min(seq.n_prompt // self.block_size, seq.n_published)
        blocks = [self.pool.blocks[block_id] for block_id in seq.block_ids[:n]]
        for block in blocks:
            self.pool.acquire(block)
        self.pins[seq.request.uid] = blocks
        return len(blocks)

    def unpin(self, uid: int) -> int:
        """Let them go, to be evicted in their turn; returns how many, 0 where there is no such pin."""
        blocks = self.pins.pop(uid, [])
        for block in reversed(blocks):
            self.pool.release(block)
        return len(blocks)

    def swap_out(self, seq: Sequence) -> None:
        """Free a sequence that comes back: its blocks stay findable, and go to host memory when somebody else takes them.

        A last block that is not full is kept under a key of its own. Blocks that others hold stay theirs.
        """
        if not self.enable_caching:
            for i, key in enumerate(self.keys(seq)[: seq.n_computed // self.block_size]):
                self._name_own(seq, i, key)
        n_full, rest = divmod(seq.n_computed, self.block_size)
        key = hashlib.sha256(b"aside" + repr((seq.request.uid, seq.index, seq.generation)).encode()).digest()
        seq.put_aside = PutAside(key, seq.n_computed)
        if rest:
            self._name_own(seq, n_full, key)
        self.free(seq)

    def _name_own(self, seq: Sequence, i: int, key: bytes) -> None:
        block = self.pool.blocks[seq.block_ids[i]]
        if block.key is None:  # who shares it copies it before writing, now that it has a name
            self.pool.publish(block, key)

    def drop(self, seq: Sequence) -> None:
        """Free a sequence that comes back and computes its tokens again: what it alone knew is not worth host memory."""
        for block_id in seq.block_ids:
            block = self.pool.blocks[block_id]
            block.kept = block.refs > 1
        self.free(seq)

    def free(self, seq: Sequence) -> None:
        """Take all blocks back, the tail first, so that leaves are evicted before the roots they hang on."""
        for key in seq.block_keys[seq.n_published : seq.n_pending_end]:
            self._forget_pending(key)
        for block_id in reversed(seq.block_ids):
            self.pool.release(self.pool.blocks[block_id])
        seq.block_ids = []
        seq.n_computed = seq.n_published = seq.n_pending_end = 0

    def forget(self, seq: Sequence, *, keep: bool = True) -> None:
        """Free a sequence that does not come back, and what was put aside of it. keep: the connector gets its prefix in time."""
        if self.exchange is not None:
            self.exchange.forget(seq)
            if keep and seq.n_published * self.block_size >= self.kept_tokens:
                self.exchange.keep(seq.block_keys[: seq.n_published])
        self.free(seq)
        self._forget_put_aside(seq)

    def _forget_put_aside(self, seq: Sequence) -> None:
        """What only this sequence could find: it has it now, or never comes for it."""
        if seq.put_aside is None:
            return
        own = [] if self.enable_caching else seq.block_keys
        for key in (*own, seq.put_aside.key):
            block = self.pool.find(key)
            if block is not None:
                self.pool.unpublish(block)
            self.host.drop(key)
        seq.put_aside = None

    def _forget_pending(self, key: bytes) -> None:
        if self._pending[key] == 1:
            del self._pending[key]
        else:
            self._pending[key] -= 1

    # Tiers -----------------------------------------------------------------------------------------------------

    def _demote(self, block: Block, key: bytes) -> None:
        """A cached block gets a new owner: keep its content, if there is room for it in host memory."""
        assert block.id not in self._arriving, "its content has not arrived yet"
        if block.kept and len(self._demotions) < self._most_demotions and (slot := self.host.store(key)) is not None:
            self._demotions.append((block.id, slot))
            self.n_demoted += 1

    @property
    def is_fetching(self) -> bool:
        """Whether a sequence may be waiting for the connector."""
        return self.exchange is not None and self.exchange.is_fetching

    def waits(self, seq: Sequence) -> bool:
        """Whether a waiting sequence was promised blocks by the connector that are still to come."""
        return self.exchange is not None and self.exchange.waits(seq)

    def fetch(self, seq: Sequence, hits: list[Hit]) -> bool:
        """Whether a waiting sequence has to wait for blocks that the connector brings."""
        if self.exchange is None or self.n_known(seq, hits) != len(hits) * self.block_size:
            return False
        known = [hit.key for hit in hits if hit.block is None]
        return self.exchange.fetch(seq, known, self.keys(seq)[len(hits) : self._matchable(seq)])

    def evict_cached(self) -> int:
        """Forget all content that no table holds, wherever it is; returns the number of blocks and copies in memory."""
        if self.exchange is not None:
            self.exchange.clear()
        return self.pool.evict_cached() + self.host.clear()

    # Laws ------------------------------------------------------------------------------------------------------

    def check(self, sequences: list[Sequence]) -> None:
        """Assert laws a, b and c for all live sequences, and that what is announced as being computed is."""
        self.pool.check([*(seq.block_ids for seq in sequences), *([block.id for block in pin] for pin in self.pins.values())])
        self.host.check()
        pending: dict[bytes, int] = {}
        for seq in sequences:
            assert seq.n_computed <= len(seq.token_ids)
            assert seq.n_published * self.block_size <= seq.n_computed
            assert len(seq.block_ids) * self.block_size >= seq.n_computed
            assert seq.put_aside is None
            expected = block_keys(self._root(seq), seq.token_ids[: seq.n_published * self.block_size], self.block_size)
            published = [self.pool.blocks[block_id].key for block_id in seq.block_ids[: seq.n_published]]
            assert published == expected, "a published block's key does not follow from its tokens"
            for key in seq.block_keys[seq.n_published : seq.n_pending_end]:
                pending[key] = pending.get(key, 0) + 1
        assert pending == self._pending, "keys announced as being computed and running sequences disagree"
