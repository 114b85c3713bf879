"""Scheduler: which sequence gets how many tokens in this step, who is admitted, and who gives way when blocks run out.

Pure Python, no torch. Prefill, decode and verification of drafts are one quantity: tokens whose KV does not exist yet.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from engine.config import EngineConfig
from engine.kv.manager import KVManager
from engine.types import Entry, Sequence, Status, StepPlan


def _order(seq: Sequence) -> tuple[int, int, int]:
    return (seq.request.priority, seq.request.uid, seq.index)


class Scheduler:
    """Waiting and running sequences, both in order of (priority, arrival)."""

    def __init__(self, config: EngineConfig, kv: KVManager) -> None:
        self.kv = kv
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.n_preemptions = 0
        self._max_num_seqs = config.max_num_seqs
        self._token_budget = config.token_budget
        self._chunked = config.enable_chunked_prefill
        self._headroom = max(1, len(kv.pool.blocks) // 100)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, seq: Sequence) -> None:
        bisect.insort(self.waiting, seq, key=_order)

    def can_run_more(self, n: int) -> bool:
        return len(self.running) + n <= self._max_num_seqs

    def add_running(self, seq: Sequence) -> None:
        """Take in a fork, which holds its blocks already."""
        assert self.can_run_more(1)
        seq.status = Status.RUNNING
        bisect.insort(self.running, seq, key=_order)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is, and its blocks back."""
        (self.running if seq.status is Status.RUNNING else self.waiting).remove(seq)
        self.kv.free(seq)
        seq.drafts = []
        seq.status = Status.FINISHED

    def schedule(self) -> StepPlan:
        """Plan one step: decodes first, so that no answer stalls behind a long prompt, then prefills, then new ones."""
        entries: dict[Sequence, Entry] = {}
        copies: list[tuple[int, int]] = []
        preempted: list[Sequence] = []
        budget = self._token_budget
        for seq in sorted(self.running, key=lambda seq: seq.n_wanted > 1 + len(seq.drafts)):
            if seq.status is not Status.RUNNING:
                continue
            n = self._share(seq, budget, alone=not entries)
            if n == 0:
                continue
            if self._reserve_or_preempt(seq, n, entries, copies, preempted):
                entries[seq] = self._entry(seq, n)
                budget -= n
        if not preempted:
            self._admit(entries, budget)
        return StepPlan(tuple(entries.values()), tuple(copies), tuple(preempted))

    def _share(self, seq: Sequence, budget: int, *, alone: bool) -> int:
        """Tokens for this sequence out of the budget; an uncut prompt above the whole budget runs alone."""
        if self._chunked:
            return min(seq.n_wanted, max(0, budget))
        return seq.n_wanted if seq.n_wanted <= budget or alone else 0

    def _reserve_or_preempt(
        self,
        seq: Sequence,
        n: int,
        planned: Iterable[Sequence],
        copies: list[tuple[int, int]],
        preempted: list[Sequence],
    ) -> bool:
        while (new_copies := self.kv.reserve(seq, n)) is None:
            victim = max((other for other in self.running if other not in planned), key=_order)
            self._preempt(victim)
            preempted.append(victim)
            if victim is seq:
                return False
        copies += new_copies
        return True

    def _preempt(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self.kv.free(seq)
        seq.drafts = []
        seq.generation += 1
        seq.n_preemptions += 1
        seq.status = Status.PREEMPTED
        self.n_preemptions += 1
        self.add(seq)

    def _admit(self, entries: dict[Sequence, Entry], budget: int) -> None:
        held_back = 0  # sequences that wait for a prefix another one is computing; later ones may pass them
        while held_back < min(len(self.waiting), self._max_num_seqs) and self.can_run_more(1) and budget > 0:
            seq = self.waiting[held_back]
            matched = self.kv.match(seq)
            if self.kv.is_being_computed(seq, len(matched)):
                held_back += 1
                continue
            headroom = self._headroom if self.running else 0
            if not self._chunked and entries and len(seq.token_ids) - len(matched) * self.kv.block_size > budget:
                break
            if not self.kv.admit(seq, matched, headroom):
                break
            del self.waiting[held_back]
            if seq.status is Status.WAITING:
                seq.n_cached = seq.n_computed
            self.add_running(seq)
            n = self._share(seq, budget, alone=not entries)
            entries[seq] = self._entry(seq, n)
            budget -= n

    def _entry(self, seq: Sequence, n: int) -> Entry:
        samples = seq.n_computed + n == len(seq.token_ids) + len(seq.drafts)
        wants_prompt_logprobs = seq.prompt_logprobs is not None and len(seq.prompt_logprobs) < seq.n_prompt
        n_logits = n if wants_prompt_logprobs else (1 + len(seq.drafts)) * samples
        return Entry(
            seq=seq,
            start=seq.n_computed,
            n_query=n,
            n_draft=len(seq.drafts) if samples else 0,
            n_logits=n_logits,
            samples=samples,
            generation=seq.generation,
        )

    def check(self) -> None:
        """Assert the laws of the blocks, and that statuses and queues agree."""
        assert all(seq.status is Status.RUNNING for seq in self.running)
        assert all(seq.status in (Status.WAITING, Status.PREEMPTED) and not seq.block_ids for seq in self.waiting)
        assert len(self.running) <= self._max_num_seqs
        assert self.running == sorted(self.running, key=_order) and self.waiting == sorted(self.waiting, key=_order)
        self.kv.check(self.running)
