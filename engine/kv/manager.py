"""KVManager: gives sequences their blocks, finds known prefixes, publishes what was computed, forks, puts aside and frees."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from typing import NamedTuple

from engine.kv import hashing, states
from engine.kv.blocks import PROTECTED_SHARE, Block
from engine.kv.groups import KVGroup
from engine.kv.match import deepest, needed
from engine.kv.memory import GroupMemory, Hit
from engine.kv.pins import Pins
from engine.kv.tiers.connector import Connector
from engine.kv.tiers.exchange import Exchange
from engine.types import Moves, PutAside
from engine.types import Sequence as Answer

STATES_SHARE = 4
"""One in so many blocks of a recurrent group may be taken by the states of one prompt."""


class Match(NamedTuple):
    """What is known of a sequence's tokens."""

    n_tokens: int
    hits: tuple[list[Hit], ...]
    """Of each group: the blocks that it needs to go on from there."""


class KVManager:
    """Block tables of all sequences in all groups. Not thread-safe: only the engine thread touches it.

    `extras` go into every block key (see hashing.root_key); the request's salt is added per sequence. A cached block that
    has to leave the device is copied into host memory, where its group has slots. Prefixes of sequences that have ended are
    given to the connector, which may have others; `post` runs a function on the engine thread, from any thread. chunk: tokens
    that one sequence computes in a step at most; turn_ends: ids of tokens that end a turn of a conversation.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        block_size: int,
        *,
        enable_caching: bool,
        extras: dict[str, str | int],
        chunk: int,
        turn_ends: Collection[int] = (),
        connector: Connector | None = None,
        post: Callable[[Callable[[], None]], None] = lambda operation: operation(),
        protected_share: float = PROTECTED_SHARE,
    ) -> None:
        self.memories: list[GroupMemory] = []
        n_slots = 0
        for group in groups:
            self.memories.append(GroupMemory(group, n_slots, protected_share=protected_share))
            n_slots += group.n_host_blocks
        self.groups = tuple(groups)
        self.block_size = block_size
        self.chunk = chunk
        self.enable_caching = enable_caching
        self.pins = Pins(self.memories, block_size)
        self._extras = extras
        self._turn_ends = turn_ends
        self._recurrent = next((memory for memory in self.memories if memory.group.recurrent), None)
        self._windows = [g for g, group in enumerate(self.groups) if group.window]
        self.pending: dict[bytes, int] = {}
        """Key of a block that is announced as being computed -> by how many sequences."""
        self.exchange = Exchange(self.memories, block_size, connector, post) if connector is not None else None

    @property
    def has_states(self) -> bool:
        """Whether a layer has a state, so that a prefix is known only where one was kept."""
        return self._recurrent is not None

    @property
    def is_whole(self) -> bool:
        """Whether no block is in use and nothing is on its way."""
        return all(memory.pool.n_free == len(memory.pool.blocks) for memory in self.memories)

    # Keys ------------------------------------------------------------------------------------------------------

    def keys(self, seq: Answer) -> list[bytes]:
        """Keys of the full blocks of the sequence's tokens, extended as far as its tokens go."""
        size, tokens, keys = self.block_size, seq.token_ids, seq.block_keys
        if len(tokens) // size > len(keys):
            parent = keys[-1] if keys else self.root_key(seq)
            keys += hashing.block_keys(parent, tokens[len(keys) * size :], size)
        return keys

    def root_key(self, seq: Answer) -> bytes:
        """Without a cache keys are the sequence's own, and name only what was put aside of it."""
        own = {} if self.enable_caching else {"sequence": f"{seq.request.uid}/{seq.index}"}
        return hashing.root_key({**self._extras, **own, "salt": seq.request.cache_salt})

    def _matchable(self, seq: Answer) -> int:
        """Blocks that a lookup may use: at least one token stays to be computed, and asked-for prompt logprobs need them all."""
        if not self.enable_caching and seq.put_aside is None:
            return 0
        if seq.prompt_logprobs is not None and len(seq.prompt_logprobs) < seq.n_prompt:
            return 0
        return (len(seq.token_ids) - 1) // self.block_size

    def match(self, seq: Answer) -> Match:
        """What is known of a sequence without blocks: all that was put aside of it, or the longest prefix of full blocks."""
        n_matchable = self._matchable(seq)
        keys = self.keys(seq)[:n_matchable] if n_matchable else []
        if n_matchable and seq.put_aside is not None and (match := self._match_aside(seq, keys)) is not None:
            return match
        if len(self.groups) == 1 and self.groups[0].keeps_all:  # most models; a long prompt has thousands of blocks
            find = self.memories[0].find
            hits = list(takewhile(bool, (find(i, key) for i, key in enumerate(keys))))
            return Match(len(hits) * self.block_size, (hits,))
        n = deepest(self.groups, len(keys), self.block_size, lambda g, i: self.memories[g].find(i, keys[i]) is not None)
        return Match(n * self.block_size, tuple(self._hits(memory, keys, n) for memory in self.memories))

    def _hits(self, memory: GroupMemory, keys: list[bytes], n_blocks: int) -> list[Hit]:
        """Of a group that knows what it needs after n_blocks."""
        place = (lambda i: 0) if memory.group.recurrent else (lambda i: i)
        return [memory.find(place(i), keys[i]) for i in needed(memory.group, n_blocks, self.block_size)]

    def _match_aside(self, seq: Answer, keys: list[bytes]) -> Match | None:
        """All that a preemption kept, if it is all there, and ends within a block or in a state."""
        aside = seq.put_aside
        n_full, rest = divmod(aside.n_computed, self.block_size)
        n_tokens = min(aside.n_computed, len(seq.token_ids) - 1)  # its last token may have been computed, and its draw lost
        if n_full > len(keys) or not (rest or self._recurrent):
            return None
        hits = []
        for memory in self.memories:
            if memory.group.recurrent:
                found = [memory.find(0, aside.key)] if n_tokens == aside.n_computed else [None]
            else:
                first = memory.group.first_needed(n_tokens, self.block_size)
                found = [memory.find(i, keys[i]) for i in range(first, n_full)]
                found += [memory.find(n_full, aside.key)] if rest else []
            if None in found:
                return None
            hits.append(found)
        return Match(n_tokens, tuple(hits))

    def is_being_computed(self, seq: Answer, match: Match) -> bool:
        """Whether a running sequence is about to publish what this one would have to compute next."""
        n, rest = divmod(match.n_tokens, self.block_size)
        n_matchable = 0 if rest else self._matchable(seq)
        if self._recurrent is None:
            n_matchable = min(n_matchable, n + 1)
        return bool(self.pending) and any(key in self.pending for key in self.keys(seq)[n:n_matchable])

    # Blocks of a sequence --------------------------------------------------------------------------------------

    def admit(self, seq: Answer, match: Match, *, beside_others: bool) -> bool:
        """Give a sequence the blocks of its hits and room for all its tokens, or change nothing and return False.

        Room for the whole prompt at once, by window where there is one, means that half-loaded prompts never wait for each
        other's blocks. beside_others: leave room for those to grow.
        """
        assert not seq.tables and seq.n_computed == 0
        firsts, news = [], []
        for memory, hits in zip(self.memories, match.hits, strict=True):
            group = memory.group
            first = 0 if group.recurrent else group.first_needed(match.n_tokens, self.block_size)
            n_entries = group.n_entries(match.n_tokens, len(seq.token_ids), self.chunk, self.block_size)
            here = [hit.block for hit in hits if hit.block is not None]
            n_new = n_entries - first - len(here)
            n_revived = sum(block.refs == 0 for block in here)
            n_copied = len(here) - n_revived if group.recurrent else 0  # a state that others hold is copied before it goes on
            if n_new + n_revived + n_copied + (memory.headroom if beside_others else 0) > memory.pool.n_free:
                return False
            firsts.append(first)
            news.append(n_new)
        seq.tables = [
            [-1] * first + self._take(memory, seq, hits, n_new)
            for memory, hits, first, n_new in zip(self.memories, match.hits, firsts, news, strict=True)
        ]
        seq.n_computed = match.n_tokens
        self._forget_put_aside(seq)
        if self.enable_caching:
            seq.n_published = seq.n_computed // self.block_size
            self._announce(seq)
        return True

    def _take(self, memory: GroupMemory, seq: Answer, hits: list[Hit], n_new: int) -> list[int]:
        """Blocks of the hits, and of the n_new allocated ones those into which nothing is promoted."""
        for hit in hits:
            if hit.block is not None:
                memory.pool.acquire(hit.block)
        slots = [memory.host.read(hit.key) if hit.block is None else -1 for hit in hits]  # before evictions need slots
        fresh = iter(memory.pool.allocate(n_new))
        blocks = []
        for hit, slot in zip(hits, slots, strict=True):
            block = hit.block
            if block is None:
                block = next(fresh)
                memory.promote(slot, block)
                if self._is_shared(seq, hit.key):
                    memory.pool.publish(block, hit.key)
            blocks.append(block)
        return [block.id for block in (*blocks, *fresh)]

    def from_tiers(self, seq: Answer, match: Match) -> tuple[int, int]:
        """Of the tokens with which a sequence was admitted, those that host memory had, and that the connector brought.

        By the blocks of the first group, where each stands for as many tokens.
        """
        hits = match.hits[0]
        n_away = sum(hit.block is None for hit in hits)
        n_brought = min(len(hits), self.exchange.take_brought(seq)) if self.exchange is not None else 0
        per_hit = match.n_tokens / len(hits) if hits else 0.0
        return round(max(0, n_away - n_brought) * per_hit), round(n_brought * per_hit)

    def _is_shared(self, seq: Answer, key: bytes) -> bool:
        """Whether others may find a block under this key."""
        return self.enable_caching and (seq.put_aside is None or key != seq.put_aside.key)

    def _announce(self, seq: Answer) -> None:
        """Tell others which blocks will be known soon, so that they wait for them."""
        keys = self.keys(seq)
        if self._recurrent is None:
            announced = range(seq.n_published, len(keys))
        else:
            if not seq.borders:  # a prompt of many thousand tokens is looked through once
                most = len(self._recurrent.pool.blocks) // STATES_SHARE
                seq.borders = states.borders(seq.token_ids, seq.n_prompt, self._turn_ends, self.block_size, most)
            announced = [border // self.block_size - 1 for border in seq.borders if border > seq.n_computed]
        seq.announced = list(reversed(announced))
        for i in announced:
            self.pending[keys[i]] = self.pending.get(keys[i], 0) + 1

    def until_border(self, seq: Answer, n_tokens: int) -> int:
        """Of the next n_tokens, those that may be computed in one step: a state that is to be kept must not be run over."""
        if seq.announced and self._recurrent is not None:
            return min(n_tokens, (seq.announced[-1] + 1) * self.block_size - seq.n_computed)
        return n_tokens

    def reserve(self, seq: Answer, n_tokens: int) -> bool:
        """Make the next n_tokens positions writable: new blocks at the end, copies of blocks that others hold or may find.

        False, and nothing changed, when blocks run out. A state that cannot be copied for want of a block is not kept.
        """
        size, start = self.block_size, seq.n_computed
        if self._writes_its_own(seq, start, start + n_tokens):  # most decodes
            return True
        wants: list[tuple[list[int], int]] = []
        for memory, table in zip(self.memories, seq.tables, strict=True):
            written, pool = memory.group.written(start, start + n_tokens, size), memory.pool
            shared = [
                i
                for i in range(written.start, min(written.stop, len(table)))
                if (block := pool.blocks[table[i]]).refs > 1 or block.key is not None
            ]
            n_new = max(0, written.stop - len(table))
            if n_new + len(shared) > pool.n_free:
                if not (memory.group.recurrent and pool.blocks[table[0]].refs == 1):
                    return False
                shared = []
            wants.append((shared, n_new))
        for g, (memory, (shared, n_new)) in enumerate(zip(self.memories, wants, strict=True)):
            table = seq.tables[g]
            for i, fresh in zip(shared, memory.pool.allocate(len(shared)), strict=True):
                memory.copy(memory.pool.blocks[table[i]], fresh)
                table = seq.replace_block(g, i, fresh.id)
            if n_new:
                table += [block.id for block in memory.pool.allocate(n_new)]
            if memory.group.recurrent and (block := memory.pool.blocks[table[0]]).key is not None:
                memory.pool.unpublish(block)
        return True

    def _writes_its_own(self, seq: Answer, start: int, end: int) -> bool:
        """Whether the tokens go into the last blocks of all tables, which nobody else holds or may find."""
        last = -(-end // self.block_size)
        if start // self.block_size + 1 != last:
            return False
        for memory, table in zip(self.memories, seq.tables, strict=True):
            if len(table) != last and not memory.group.recurrent:
                return False
            block = memory.pool.blocks[table[-1]]
            if block.refs > 1 or block.key is not None:
                return False
        return True

    def finish_plan(self, *, idle: bool = False) -> tuple[Moves, ...]:
        """The plan is complete: for each group, what has to be copied before it runs. Nothing is held for it any more."""
        stored = self.exchange.prepare(idle=idle) if self.exchange is not None else [[] for _ in self.memories]
        return tuple(memory.finish_plan(copies) for memory, copies in zip(self.memories, stored, strict=True))

    def publish(self, seq: Answer) -> None:
        """Name the sequence's blocks that are full of computed, committed tokens; an equal known block replaces ours.

        Blocks that fell out of their window are free then.
        """
        n_full, size = seq.n_computed // self.block_size, self.block_size
        if self.enable_caching and n_full > seq.n_published:
            keys = self.keys(seq)
            for g, memory in enumerate(self.memories):
                if not memory.group.recurrent:
                    for i in range(seq.n_published, n_full):
                        self._publish(memory, g, seq, i, keys[i])
                elif seq.n_computed == n_full * size and (seq.n_computed >= seq.n_prompt or seq.n_computed in seq.borders):
                    self._publish(memory, g, seq, 0, keys[n_full - 1])
                    self._forget_last_state(seq, keys[n_full - 1])
            while seq.announced and seq.announced[-1] < n_full:
                self._forget_pending(keys[seq.announced.pop()])
            seq.n_published = n_full
        for g in self._windows:
            memory, table = self.memories[g], seq.tables[g]
            i = memory.group.first_needed(max(0, seq.n_computed - 1), size) - 1  # a fork computes the last token again
            while i >= 0 and table[i] >= 0:
                memory.pool.release(memory.pool.blocks[table[i]])
                table[i] = -1
                i -= 1

    def _publish(self, memory: GroupMemory, g: int, seq: Answer, i: int, key: bytes) -> None:
        block = memory.pool.blocks[seq.tables[g][i]]
        known = memory.pool.publish(block, key)
        if known is not block:
            memory.pool.acquire(known)
            seq.replace_block(g, i, known.id)
            memory.pool.release(block)

    def _forget_last_state(self, seq: Answer, key: bytes) -> None:
        """Of an answer, the last state is kept and those at intervals: its conversation goes on from its end."""
        if seq.n_computed < seq.n_prompt:
            return
        last, seq.last_state = seq.last_state, None
        block = self._recurrent.pool.find(last) if last not in (None, key) else None
        if block is not None and block.refs == 0 and not block.reused:
            self._recurrent.pool.unpublish(block)
        if seq.n_computed % states.interval_tokens(self.block_size):
            seq.last_state = key

    def can_fork(self, parent: Answer, child: Answer) -> bool:
        """A state is shared as it is, and cannot be cut back to fewer tokens."""
        return self._recurrent is None or child.n_computed == parent.n_computed

    def fork(self, parent: Answer, child: Answer) -> None:
        """Let the child share the parent's blocks up to its own n_computed + 1 tokens. Takes no block, so it cannot fail."""
        n_blocks = -(-len(child.token_ids) // self.block_size)
        child.tables = [table[:n_blocks] for table in parent.tables]
        if self.enable_caching:
            child.block_keys = parent.block_keys[: len(child.token_ids) // self.block_size]
        child.n_published = min(parent.n_published, child.n_computed // self.block_size)
        for memory, block in self._blocks(child):
            memory.pool.acquire(block)

    def _blocks(self, seq: Answer) -> list[tuple[GroupMemory, Block]]:
        """What it holds; nothing while it waits, without tables."""
        return [
            (memory, memory.pool.blocks[block_id])
            for memory, table in zip(self.memories, seq.tables, strict=False)
            for block_id in table
            if block_id >= 0
        ]

    def n_bytes(self, seq: Answer) -> int:
        """Of the blocks that it holds."""
        return sum(memory.group.block_bytes for memory, _ in self._blocks(seq))

    def swap_out(self, seq: Answer) -> None:
        """Free a sequence that comes back: its blocks stay findable, and go to host memory when somebody else takes them.

        A last block that is not full, and a state, is kept under a key of its own. Blocks that others hold stay theirs.
        """
        n_full, rest = divmod(seq.n_computed, self.block_size)
        key = hashlib.sha256(b"aside" + repr((seq.request.uid, seq.index, seq.generation)).encode()).digest()
        seq.put_aside = PutAside(key, seq.n_computed)
        own = [] if self.enable_caching else self.keys(seq)[:n_full]
        for memory, table in zip(self.memories, seq.tables, strict=True):
            if memory.group.recurrent:
                named = {0: key} if seq.n_computed else {}
            else:
                named = dict(enumerate(own)) | ({n_full: key} if rest else {})
            for i, name in named.items():
                if table[i] >= 0 and (block := memory.pool.blocks[table[i]]).key is None:
                    memory.pool.publish(block, name)  # who shares it copies it before writing, now that it has a name
        self.free(seq)

    def drop(self, seq: Answer) -> None:
        """Free a sequence that comes back and computes its tokens again: what it alone knew is not worth host memory."""
        for _, block in self._blocks(seq):
            block.kept = block.refs > 1
        self.free(seq)

    def free(self, seq: Answer) -> None:
        """Take all blocks back, the tail first, so that leaves are evicted before the roots they hang on."""
        for i in seq.announced:
            self._forget_pending(seq.block_keys[i])
        for memory, block in reversed(self._blocks(seq)):
            memory.pool.release(block)
        seq.tables, seq.announced = [], []
        seq.n_computed = seq.n_published = 0
        seq.last_state = None

    def forget(self, seq: Answer, *, keep: bool = True) -> None:
        """Free a sequence that does not come back, and what was put aside of it. keep: the connector gets its prefix in time."""
        if self.exchange is not None:
            self.exchange.forget(seq)
            if keep:
                self.exchange.keep(seq)
        self.free(seq)
        self._forget_put_aside(seq)

    def _forget_put_aside(self, seq: Answer) -> None:
        """What only this sequence could find: it has it now, or never comes for it."""
        if seq.put_aside is None:
            return
        own = [] if self.enable_caching else seq.block_keys
        for memory in self.memories:
            for key in (*own, seq.put_aside.key):
                memory.forget(key)
        seq.put_aside = None

    def _forget_pending(self, key: bytes) -> None:
        if self.pending[key] == 1:
            del self.pending[key]
        else:
            self.pending[key] -= 1

    def why_not_pinned(self, seq: Answer) -> str | None:
        """What keeps a sequence's prompt from being pinned, in words."""
        if not self.enable_caching:
            return "Nothing can be pinned: the prefix cache is off."
        return self.pins.why_not(self.keys(seq)[: seq.n_prompt // self.block_size])

    # Tiers -----------------------------------------------------------------------------------------------------

    @property
    def is_fetching(self) -> bool:
        """Whether a sequence may be waiting for blocks that come from elsewhere."""
        return self.exchange is not None and (self.exchange.is_fetching or any(memory.is_promoting for memory in self.memories))

    def waits(self, seq: Answer) -> bool:
        """Whether a waiting sequence was promised blocks by the connector that are still to come."""
        return self.exchange is not None and self.exchange.waits(seq)

    def fetch(self, seq: Answer, match: Match) -> bool:
        """Whether a waiting sequence has to wait for blocks that the connector brings, in rounds where host memory is small."""
        n_known, rest = divmod(match.n_tokens, self.block_size)
        n_matchable = self._matchable(seq)
        if self.exchange is None or rest or n_matchable <= n_known:
            return False
        keys = self.keys(seq)[:n_matchable]
        if self.exchange.goes_on(seq) and self._bring_home(keys):
            return True
        return self.exchange.fetch(seq, keys, n_known)

    def _bring_home(self, keys: list[bytes]) -> bool:
        """Copy what only host memory has of the known blocks of a prefix into the cache, if there is room for all of them.

        Its slots are free for the next round then.
        """
        brought = False
        for memory in self.memories:
            if not memory.group.keeps_all:
                continue
            hits = list(takewhile(bool, (memory.find(i, key) for i, key in enumerate(keys))))
            away = [hit.key for hit in hits if hit.block is None]
            n_held = sum(hit.block is not None and hit.block.refs == 0 for hit in hits)
            if len(away) > memory.pool.n_free - n_held - memory.headroom:
                continue
            for hit in hits:
                if hit.block is not None:  # it must not make room for the others
                    memory.pool.acquire(hit.block)
                    memory.hold(hit.block)
            slots = [memory.host.read(key) for key in away]  # before evictions need slots
            for key, slot, block in zip(away, slots, memory.pool.allocate(len(away)), strict=True):
                memory.promote(slot, block)
                memory.pool.publish(block, key)
                memory.hold(block)
            brought |= bool(away)
        return brought

    def n_findable(self, seq: Answer) -> int:
        """Tokens of a sequence without blocks that need not be computed: memory has them, or the connector could bring them."""
        n_known, keys = self.match(seq).n_tokens, self.keys(seq)[: self._matchable(seq)]
        return max(n_known, self.exchange.reach(keys) * self.block_size) if self.exchange is not None else n_known

    def evict_cached(self) -> int:
        """Forget all content that no table holds, wherever it is; returns the number of blocks and copies in memory."""
        if self.exchange is not None:
            self.exchange.clear()
        return sum(memory.evict_cached() for memory in self.memories)
