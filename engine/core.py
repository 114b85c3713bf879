"""EngineCore: the one place where sequences change. Inbox, step loop, commit.

Outside requests enter through the inbox only, which is drained between two steps; results leave as one batch of
events per step. `run` drives it on a thread of its own (AsyncEngine), `step` by hand (LLM, tests).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from engine.admission import check_beams
from engine.beams import Continuation
from engine.config import EngineConfig
from engine.errors import BrokenLogits, EngineDead
from engine.group import RequestGroup
from engine.kv.groups import KVGroup
from engine.kv.manager import KVManager
from engine.kv.tiers.connector import Connector
from engine.preemption import Preemption
from engine.scheduler import Scheduler
from engine.snapshot import Counters, snapshot
from engine.stats import EngineStats
from engine.text.tokenizer import Tokenizer
from engine.types import (
    Delta,
    Entry,
    Event,
    FinishReason,
    Moves,
    Request,
    Sampled,
    Sequence,
    Started,
    Status,
    StepPlan,
    StepResult,
    TokenLogprob,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

PREFILL_TOKENS = 64
"""Tokens from which a step tells how fast prompts are computed."""
FETCH_WAIT_S = 1.0
STORE_REST_S = 2.0
MAX_FAILED_STEPS = 3
"""Steps that may fail one after another before the engine gives up."""


class Runner(Protocol):
    """What the core needs of a model: memory for blocks, and a forward pass with sampling."""

    block_size: int
    """Tokens of a block."""
    kv_groups: tuple[KVGroup, ...]
    max_model_len: int
    kv_extras: dict[str, str | int]
    """What the KV depends on besides tokens: weights digest, dtype, layout (see kv.hashing.root_key)."""

    def move(self, moves: tuple[Moves, ...]) -> None:
        """Copy blocks of each group; done when it returns."""

    def execute(self, plan: StepPlan) -> StepResult: ...


class EngineCore:
    """Scheduler, KV cache and runner behind an inbox. `emit` receives each step's events on the engine thread."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tokenizer: Tokenizer,
        emit: Callable[[list[Event]], None],
        connector: Connector | None = None,
    ) -> None:
        self.runner = runner
        self.tokenizer = tokenizer
        self.max_model_len = runner.max_model_len
        self.kv = KVManager(
            runner.kv_groups,
            runner.block_size,
            enable_caching=config.enable_prefix_caching,
            extras=runner.kv_extras,
            chunk=config.token_budget if config.enable_chunked_prefill else runner.max_model_len,
            turn_ends=tokenizer.end_ids,
            connector=connector,
            post=self._post_late,
        )
        has_host_memory = all(group.n_host_blocks for group in runner.kv_groups)
        self.preemption = Preemption(config.preemption_mode, has_host_memory=has_host_memory)
        self.scheduler = Scheduler(config, self.kv, self.preemption)
        self._prefill_tokens = min(config.token_budget, PREFILL_TOKENS)
        self.exchange = self.kv.exchange
        if self.exchange is not None:
            self.exchange.keeps = config.role != "prefill"
        self._connector = connector
        self._fetch_wait_s = FETCH_WAIT_S
        self.groups: dict[int, RequestGroup] = {}
        self.counters = Counters()
        self.error: BaseException | None = None
        self._emit = emit
        self._events: list[Event] = []
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = self._closed = False
        self._n_failed_steps = 0
        self._debug = config.debug_checks
        self._random = random.Random(config.seed)
        self.uids = itertools.count()
        """Where requests' numbers come from."""
        self._last_step_s = 0.0
        self._last_step_tokens = 0

    # From any thread -------------------------------------------------------------------------------------------

    def add(self, request: Request) -> int:
        """Queue a checked request (see engine.admission); returns its uid. Raises EngineDead, InvalidRequest."""
        self.take_in(request)
        self.enqueue(request)
        return request.uid

    def take_in(self, request: Request) -> int:
        """Number a checked request that will be queued. Raises InvalidRequest."""
        if request.params.beam_width:
            check_beams(request, self.kv, max_num_seqs=self.scheduler.max_num_seqs, max_model_len=self.max_model_len)
        request.uid = next(self.uids)
        return request.uid

    def enqueue(self, request: Request) -> None:
        """Queue a request that `take_in` has numbered. Raises EngineDead."""
        self._post(lambda: self._add(request))

    def abort(self, uid: int) -> None:
        """End a request at the next step's start; nothing happens if it has ended already."""
        with contextlib.suppress(EngineDead):
            self._post(lambda: self._abort(uid))

    def ask(self, question: Callable[[EngineCore], T], reply: Callable[[T], None]) -> None:
        """`reply` gets the answer to a question, which is put on the engine thread between two steps."""
        self._post(lambda: reply(question(self)))

    def stop(self) -> None:
        """End `run` after the step under way; every live request ends with an error that says so."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def _post(self, operation: Callable[[], None]) -> None:
        with self._wake:
            if self._closed:
                raise EngineDead(f"The engine has stopped: {self.error or 'it was closed'}.", "Load the model again.")
            self._inbox.append(operation)
            self._wake.notify()

    def _post_late(self, operation: Callable[[], None]) -> None:
        """As `_post`; of no interest any more once the engine has stopped."""
        with contextlib.suppress(EngineDead):
            self._post(operation)

    @property
    def _has_stores(self) -> bool:
        return self.exchange is not None and self.exchange.has_stores

    # The engine thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Step until stopped. An error outside a step's forward pass is a broken law: the engine dies and says so."""
        reason = "The server stopped, or unloaded the model, before the answer was complete."
        try:
            while True:
                with self._wake:
                    while not (self._inbox or self.scheduler.has_work or self._has_stores or self._stopping):
                        self._wake.wait()
                    if self._stopping:
                        break
                self.step()
            self.store_rest()
        except BaseException as error:
            log.exception("The engine has stopped")
            self.error = error
            reason = f"The engine has stopped: {error}"
        finally:
            self._close(reason)
            if self._connector is not None:
                self._connector.close()

    def _close(self, reason: str) -> None:
        """Take no more requests, and end every one that is left. Sequences and blocks may be broken, so they stay untouched."""
        with self._wake:
            self._closed = True
        for operation in self._inbox:
            try:
                operation()
            except Exception:
                log.exception("An operation on the stopped engine failed")
        for group in self.groups.values():
            self.counters.count_end(FinishReason.ERROR)
            self._events.append(group.terminal(FinishReason.ERROR, reason))
        self.groups = {}
        self._flush()

    def step(self) -> None:
        """Drain the inbox, plan, compute, commit, emit. Raises EngineDead once blocks may not hold what the index says."""
        if self.error is not None:
            raise EngineDead(f"The engine has stopped: {self.error!r}.", "Load the model again.")
        self._drain()
        plan = self.scheduler.schedule()
        if self._debug:
            self.scheduler.check_plan(plan)
        if any(plan.moves):
            self._move(plan.moves)
        if self.exchange is not None:
            self.exchange.submit()
            if not plan.entries and self.exchange.is_fetching:
                self._wait_for_inbox()
        if plan.stuck is not None:
            error = "Its tokens, or its beams together, do not fit into the KV cache."
            self._end(self.groups[plan.stuck.request.uid], FinishReason.ERROR, error)
        if plan.entries:
            self._note_started(plan)
            self._flush()  # who waits learns at once that its prompt is being read
            began = time.perf_counter()
            try:
                result = self.runner.execute(plan)
            except Exception as error:
                self._fail(plan, error)
            else:
                self._n_failed_steps = 0
                self._commit(plan, result)
            self.counters.n_steps += 1
            self._last_step_s = time.perf_counter() - began
            if plan.n_tokens >= self._prefill_tokens:
                self.preemption.note_prefill(plan.n_tokens, self._last_step_s)
            self.counters.busy_s += self._last_step_s
            self._last_step_tokens = plan.n_tokens
        if self._debug:
            self.scheduler.check()
        self._flush()

    def _drain(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def store_rest(self) -> None:
        """Give the connector the rest, as fast as it takes it, within the time that a person waits for an orderly end."""
        if self.exchange is None:
            return
        deadline = time.monotonic() + STORE_REST_S
        while self.exchange.has_rest and (left_s := deadline - time.monotonic()) > 0:
            if self.exchange.has_stores:
                if any(moves := self.kv.finish_plan(idle=True)):
                    self._move(moves)
                self.exchange.submit()
            else:
                with self._wake:
                    if not self._inbox:
                        self._wake.wait(left_s)
            self._drain()

    def _wait_for_inbox(self) -> None:
        """There is nothing to do until a connector has brought something, or somebody asks for something."""
        with self._wake:
            if not self._inbox and not self._stopping:
                self._wake.wait(self._fetch_wait_s)

    def _move(self, moves: tuple[Moves, ...]) -> None:
        """A copy in memory that fails leaves the index wrong: that ends the engine."""
        began, before = time.perf_counter(), self.counters.to_host_bytes + self.counters.from_host_bytes
        try:
            self.runner.move(moves)
        except BaseException as error:  # KeyboardInterrupt too, where a person steps the engine
            self.error = error
            raise
        for group, of_group in zip(self.kv.groups, moves, strict=True):
            self.counters.to_host_bytes += len(of_group.demotions) * group.block_bytes
            self.counters.from_host_bytes += len(of_group.promotions) * group.block_bytes
        if n_bytes := self.counters.to_host_bytes + self.counters.from_host_bytes - before:
            self.preemption.note_copies(n_bytes, time.perf_counter() - began)

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        """End the requests that broke the step, all of its requests if that is unknown; the others compute theirs again."""
        planned = {entry.seq.request.uid for entry in plan.entries}
        broken = planned & set(error.uids) if isinstance(error, BrokenLogits) else planned
        log.error("A step failed; %d of its %d requests end with an error", len(broken), len(planned), exc_info=error)
        for uid in broken:
            self._end(self.groups[uid], FinishReason.ERROR, f"The model could not compute this answer: {error}")
        if self.kv.has_states:  # those of the others may have gone on, and cannot go back
            self.scheduler.put_back(entry.seq for entry in plan.entries)
        self._n_failed_steps += 1
        if self._n_failed_steps == MAX_FAILED_STEPS:
            raise error  # a device that has failed fails every step; only a new load may help

    def _flush(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._emit(events)

    def _add(self, request: Request) -> None:
        seed = request.params.seed if request.params.seed is not None else self._random.getrandbits(64)
        group = RequestGroup(request, self.tokenizer, seed=seed, max_model_len=self.max_model_len)
        self.groups[request.uid] = group
        self.counters.n_requests += 1
        self.scheduler.add(group.first)
        if request.pins and (error := self.kv.why_not_pinned(group.first)) is not None:
            self._end(group, FinishReason.ERROR, error)

    def _abort(self, uid: int) -> None:
        group = self.groups.get(uid)
        if group is not None:
            self._end(group, FinishReason.ABORT)

    def _end(self, group: RequestGroup, reason: FinishReason, error: str | None = None) -> None:
        """The one way out for a request: its live sequences leave, and its single terminal event goes out."""
        for seq in group.sequences:
            if seq.status is not Status.FINISHED:
                seq.finish_reason = reason
                self.scheduler.remove(seq)
        del self.groups[group.request.uid]
        self.counters.count_end(reason)
        if reason is FinishReason.STOP:
            self._events += group.chosen()
        self._events.append(group.terminal(reason, error))

    def _note_started(self, plan: StepPlan) -> None:
        for entry in plan.entries:
            seq = entry.seq
            if seq.first_scheduled_s is None:
                seq.first_scheduled_s = time.monotonic()
                self.counters.prefix_queries += seq.n_prompt
                self.counters.cached_tokens += seq.n_cached
                self.counters.cached_host_tokens += seq.n_from_host
                self.counters.cached_disk_tokens += seq.n_from_disk
                queued_s = seq.first_scheduled_s - seq.request.arrival_s
                self._events.append(Started(seq.request.uid, seq.n_prompt, seq.n_cached, queued_s))

    def stats(self) -> EngineStats:
        """The engine as it stands; asked between two steps."""
        return snapshot(self.scheduler, self.counters, last_step_s=self._last_step_s, last_step_tokens=self._last_step_tokens)

    # Commit ----------------------------------------------------------------------------------------------------

    def _commit(self, plan: StepPlan, result: StepResult) -> None:
        searches: dict[RequestGroup, None] = {}
        for entry, sampled in zip(plan.entries, result.sampled, strict=True):
            seq = entry.seq
            if seq.status is not Status.RUNNING or seq.generation != entry.generation:
                continue
            group = self.groups[seq.request.uid]
            self.counters.prompt_tokens += max(0, min(entry.start + entry.n_query, seq.n_prompt) - entry.start)
            seq.n_computed = entry.start + entry.n_query
            self._keep_prompt_logprobs(entry, sampled)
            self.kv.publish(seq)
            if not entry.samples:
                continue
            if group.beams is not None:
                group.beams.offer(seq, sampled.logprobs[0])
                searches[group] = None
                continue
            if len(group.sequences) < group.n_choices:
                self._fork(group)
            self._append(group, seq, sampled)
            if seq.finish_reason is not None:
                if seq is group.first and group.request.pins:
                    error = self.kv.why_not_pinned(seq)  # others were pinned meanwhile
                    if error is None and not self.kv.pins.pin(seq):
                        error = "What was to be pinned had to make room at once."
                    if error is not None:
                        self._end(group, FinishReason.ERROR, error)
                        continue
                self.scheduler.remove(seq)
                if group.finished:
                    self._end(group, FinishReason.STOP)
        for group in searches:
            if all(group.beams.has(beam) for beam in group.sequences):
                self._advance(group)

    def _advance(self, group: RequestGroup) -> None:
        """All beams of a search know what may follow them: the best continuations go on, the other beams leave."""
        beams, before = group.beams, group.sequences
        chosen = beams.advance(before)
        self.counters.output_tokens += len(chosen) or 1
        now = time.monotonic()
        for beam in before:
            beam.first_token_s = beam.first_token_s or now
        if not chosen:
            self._end(group, FinishReason.STOP)
            return
        first: dict[Sequence, Continuation] = {}
        forks = [c for c in chosen if first.setdefault(c.beam, c) is not c]
        group.sequences = list(first)
        for beam in before:
            if beam not in first:
                beams.leave(beam)
                self.scheduler.remove(beam, keep=False)
        for continuation in forks:  # they see their parent as it was
            child = group.fork_beam(continuation)
            beams.follow(child, continuation)
            self._share(continuation.beam, child)
        for beam, continuation in first.items():
            beam.token_ids.append(continuation.token_id)
            beams.follow(beam, continuation)

    def _share(self, parent: Sequence, child: Sequence) -> None:
        """A fork runs at once on its parent's blocks, or waits: where no more may run, or a state would have to be cut back."""
        if self.scheduler.can_run_more(1) and self.kv.can_fork(parent, child):
            self.kv.fork(parent, child)
            self.scheduler.add_running(child)
        else:
            child.n_computed = 0
            self.scheduler.add(child)

    def _fork(self, group: RequestGroup) -> None:
        parent = group.sequences[0]
        for child in group.fork():
            self._share(parent, child)

    def _keep_prompt_logprobs(self, entry: Entry, sampled: Sampled) -> None:
        kept = entry.seq.prompt_logprobs
        if kept is None or sampled.prompt_logprobs is None:
            return
        first = entry.start + entry.n_query - entry.n_logits + 1
        kept += sampled.prompt_logprobs[len(kept) - first :]

    def _append(self, group: RequestGroup, seq: Sequence, sampled: Sampled) -> None:
        """Accept tokens one by one, and cut exactly where the answer ends; what was drawn after that is dropped."""
        text, token_ids = "", []
        logprobs: list[TokenLogprob] | None = [] if sampled.logprobs is not None else None
        if seq.first_token_s is None:
            seq.first_token_s = time.monotonic()
        for i, token_id in enumerate(sampled.token_ids):
            seq.token_ids.append(token_id)
            self.counters.output_tokens += 1
            if logprobs is not None:
                seq.logprob_sum += sampled.logprobs[i].logprob
            if token_id in seq.end_ids:
                seq.finish_reason = FinishReason.STOP
                if token_id in seq.request.params.stop_token_ids:
                    seq.stop_reason = token_id
                break
            token_ids.append(token_id)
            if logprobs is not None:
                logprobs.append(sampled.logprobs[i])
            text += seq.text.push(token_id, may_stop=seq.n_output > seq.request.params.min_tokens)
            if seq.text.stopped is not None:
                seq.finish_reason, seq.stop_reason = FinishReason.STOP, seq.text.stopped
                break
            if seq.n_output >= seq.max_tokens:
                seq.finish_reason = FinishReason.LENGTH
                break
        if seq.finish_reason is not None and seq.text.stopped is None:
            text += seq.text.finish()
        if text or token_ids or seq.finish_reason:
            delta = Delta(
                uid=seq.request.uid,
                index=seq.index,
                text=text,
                token_ids=tuple(token_ids),
                logprobs=tuple(logprobs) if logprobs is not None else None,
                finish_reason=seq.finish_reason,
                stop_reason=seq.stop_reason,
            )
            if group.holds_back:
                group.hold(delta)
            else:
                self._events.append(delta)
