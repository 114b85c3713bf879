"""Scheduler: which sequence gets how many tokens in this step, who is admitted, and who gives way when blocks run out.

Pure Python, no torch. Prefill and decode are one quantity: tokens whose KV does not exist yet.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.kv import laws
from engine.kv.manager import KVManager
from engine.preemption import Preemption
from engine.types import Entry, Sequence, Status, StepPlan

log = logging.getLogger(__name__)


def _order(seq: Sequence) -> tuple[int, int, int]:
    return (seq.request.priority, seq.request.uid, seq.index)


LONG_STEPS = 8
"""A prompt that needs more steps than this leaves half of each to others: a chat goes on beside an agent's long prompt."""


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    budget: int
    """Tokens left; below zero after an uncut prompt that exceeds the step's budget."""
    entries: dict[Sequence, Entry] = field(default_factory=dict)
    preempted: list[Sequence] = field(default_factory=list)
    n_prefills: int = 0


class Scheduler:
    """Waiting and running sequences, both in order of (priority, arrival)."""

    def __init__(self, config: EngineConfig, kv: KVManager, preemption: Preemption) -> None:
        self.kv = kv
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.n_swaps = self.n_recomputes = 0
        """Preemptions by kind."""
        self._preemption = preemption
        self.max_num_seqs = config.max_num_seqs
        self._token_budget = config.token_budget
        self._chunked = config.enable_chunked_prefill

    @property
    def n_preemptions(self) -> int:
        return self.n_swaps + self.n_recomputes

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, seq: Sequence) -> None:
        bisect.insort(self.waiting, seq, key=_order)

    def can_run_more(self, n: int) -> bool:
        return len(self.running) + n <= self.max_num_seqs

    def add_running(self, seq: Sequence) -> None:
        """Take in a fork, which holds its blocks already."""
        assert self.can_run_more(1)
        seq.status = Status.RUNNING
        bisect.insort(self.running, seq, key=_order)

    def remove(self, seq: Sequence, *, keep: bool = True) -> None:
        """Take a sequence out, wherever it is, and its blocks back. keep: its prefix is worth a place outside of memory."""
        (self.running if seq.status is Status.RUNNING else self.waiting).remove(seq)
        self.kv.forget(seq, keep=keep)
        seq.status = Status.FINISHED

    def schedule(self) -> StepPlan:
        """Plan one step: decodes first, so that no answer stalls behind a long prompt, then prefills, then new ones.

        A waiting sequence goes before the prefills under way where its priority is above all of theirs.
        """
        draft = _Draft(self._token_budget)
        prefills = [seq for seq in self.running if seq.n_wanted > 1]
        for seq in [seq for seq in self.running if seq.n_wanted == 1]:
            if seq.status is Status.RUNNING:
                self._plan(draft, seq, min(1, draft.budget))
        prefills = [seq for seq in prefills if seq.status is Status.RUNNING]
        if prefills and not draft.preempted:
            self._admit(draft, before=prefills[0].request.priority)
        shared = len(prefills) > 1 or bool(self.waiting)
        for seq in prefills:
            if seq.status is Status.RUNNING:
                self._plan(draft, seq, self._share(draft, seq, shared=shared))
        if not draft.preempted:
            self._admit(draft)
        for seq in prefills:  # what nobody else could use
            if seq in draft.entries and draft.budget > 0 and (rest := seq.n_wanted - draft.entries[seq].n_query):
                self._plan(draft, seq, draft.entries[seq].n_query + min(rest, draft.budget), preempt=False)
        stuck = None
        if not (draft.entries or draft.preempted) and self.waiting and not self.kv.is_fetching:
            stuck = self._make_way(draft)
        moves = self.kv.finish_plan(idle=not draft.entries)
        return StepPlan(tuple(draft.entries.values()), tuple(draft.preempted), moves, stuck)

    def _make_way(self, draft: _Draft) -> Sequence | None:
        """Nothing that runs can go on: make room for the first that waits. Returns it where there will never be any.

        What runs are beams that wait for others of their search, and what they hold is what those, or who is before them, need.
        Where nothing runs, the first does not fit at all.
        """
        first = self.waiting[0]
        if self.kv.pins:
            uid = next(iter(self.kv.pins))
            log.warning("The pin of request %d is lifted: a request needs more of the KV cache than pins leave", uid)
            self.kv.pins.unpin(uid)
        elif self.running and _order(last := max(self.running, key=_order)) > _order(first):
            self._preempt(draft, last)
        else:
            return first
        return None

    def _share(self, draft: _Draft, seq: Sequence, *, shared: bool) -> int:
        """Tokens of a prefill in this step. A long one leaves half of the budget to others; uncut, one may exceed it."""
        if not self._chunked:
            return seq.n_wanted if seq.n_wanted <= draft.budget or not draft.n_prefills else 0
        is_long = seq.n_wanted > LONG_STEPS * self._token_budget
        return min(seq.n_wanted, -(-draft.budget // 2) if shared and is_long else draft.budget)

    def _plan(self, draft: _Draft, seq: Sequence, n: int, *, preempt: bool = True) -> None:
        """Put up to n tokens of a running sequence into the plan, if blocks can be had for them."""
        n = self.kv.until_border(seq, n)
        if n > 0 and (self._reserve_or_preempt(seq, n, draft) if preempt else self.kv.reserve(seq, n)):
            before = draft.entries.get(seq)
            draft.budget -= n - (before.n_query if before else 0)
            draft.n_prefills += before is None and seq.n_wanted > 1
            draft.entries[seq] = self._entry(seq, n)

    def _reserve_or_preempt(self, seq: Sequence, n: int, draft: _Draft) -> bool:
        while not self.kv.reserve(seq, n):
            victim = max((other for other in self.running if other not in draft.entries), key=_order)
            self._preempt(draft, victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, draft: _Draft, seq: Sequence) -> None:
        draft.preempted.append(seq)
        if self._preemption.swaps(seq.n_computed, self.kv.n_bytes(seq)):
            self.kv.swap_out(seq)
            self.n_swaps += 1
        else:
            self.kv.drop(seq)
            self.n_recomputes += 1
        self._wait_again(seq)

    def put_back(self, seqs: Iterable[Sequence]) -> None:
        """Those of these that run compute again what nobody knows of them: what they hold may be wrong."""
        for seq in seqs:
            if seq.status is Status.RUNNING:
                self.kv.drop(seq)
                self._wait_again(seq)

    def _wait_again(self, seq: Sequence) -> None:
        self.running.remove(seq)
        seq.generation += 1
        seq.n_preemptions += 1
        seq.status = Status.PREEMPTED
        self.add(seq)

    def _admit(self, draft: _Draft, *, before: int | None = None) -> None:
        """Admit waiting sequences in order while there is room; with `before`, only those of a priority above it."""
        held_back = 0  # sequences that wait for a prefix that another one computes, or a connector brings; later ones may pass
        while held_back < min(len(self.waiting), self.max_num_seqs) and self.can_run_more(1) and draft.budget > 0:
            seq = self.waiting[held_back]
            if before is not None and seq.request.priority >= before:
                break
            if self.kv.waits(seq):
                held_back += 1
                continue
            match = self.kv.match(seq)
            if self.kv.is_being_computed(seq, match) or self.kv.fetch(seq, match):
                held_back += 1
                continue
            n_wanted = len(seq.token_ids) - match.n_tokens
            if not self._chunked and draft.n_prefills and n_wanted > draft.budget:
                break
            if not self.kv.admit(seq, match, beside_others=bool(self.running)):
                break
            del self.waiting[held_back]
            if seq.status is Status.WAITING:
                seq.n_cached = seq.n_computed
                seq.n_from_host, seq.n_from_disk = self.kv.from_tiers(seq, match)
            self.add_running(seq)
            self._plan(draft, seq, self._share(draft, seq, shared=bool(self.waiting)), preempt=False)

    def _entry(self, seq: Sequence, n: int) -> Entry:
        samples = n == seq.n_wanted
        wants_prompt_logprobs = seq.prompt_logprobs is not None and len(seq.prompt_logprobs) < seq.n_prompt
        return Entry(
            seq=seq,
            start=seq.n_computed,
            n_query=n,
            n_logits=n if wants_prompt_logprobs else int(samples),
            samples=samples,
            generation=seq.generation,
        )

    def check_plan(self, plan: StepPlan) -> None:
        """Assert law d: whatever the plan writes belongs to one sequence and has no key; and that copies do not interfere."""
        for moves in plan.moves:
            sources = {source for source, _ in moves.copies}
            destinations = [destination for _, destination in moves.copies]
            assert len(set(destinations)) == len(destinations) and not sources & set(destinations), (
                f"copies clash: {moves.copies}"
            )
            slots = [slot for _, slot in moves.demotions]
            assert len(set(slots)) == len(slots), f"two blocks go to one host slot: {moves.demotions}"
            arriving = [block_id for _, block_id in moves.promotions]
            assert len(set(arriving)) == len(arriving), f"two host slots go to one block: {moves.promotions}"
        for entry in plan.entries:
            for memory, table in zip(self.kv.memories, entry.seq.tables, strict=True):
                written = memory.group.written(entry.start, entry.start + entry.n_query, self.kv.block_size)
                for block_id in table[written.start : written.stop]:
                    block = memory.pool.blocks[block_id]
                    assert block.refs == 1 and block.key is None, f"block {block_id} is written, but others may read it"

    def check(self) -> None:
        """Assert the laws of the blocks, and that statuses and queues agree."""
        assert all(seq.status is Status.RUNNING for seq in self.running)
        assert all(seq.status in (Status.WAITING, Status.PREEMPTED) and not seq.tables for seq in self.waiting)
        assert len(self.running) <= self.max_num_seqs
        assert self.running == sorted(self.running, key=_order) and self.waiting == sorted(self.waiting, key=_order)
        laws.check(self.kv, self.running)
