"""EngineCore: the one place where sequences change. Inbox, step loop, commit.

Outside requests enter through the inbox only, which is drained between two steps; results leave as one batch of
events per step. `run` drives it on a thread of its own (AsyncEngine), `step` by hand (LLM, tests).
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from engine.config import EngineConfig
from engine.errors import BrokenLogits, EngineDead
from engine.group import RequestGroup
from engine.kv.manager import KVManager
from engine.scheduler import Scheduler
from engine.snapshot import Counters, snapshot
from engine.stats import EngineStats
from engine.text.tokenizer import Tokenizer
from engine.types import (
    Delta,
    Entry,
    Event,
    FinishReason,
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


MAX_FAILED_STEPS = 3
"""Steps that may fail one after another before the engine gives up."""


class Runner(Protocol):
    """What the core needs of a model: memory for blocks, and a forward pass with sampling."""

    n_blocks: int
    max_model_len: int
    kv_extras: dict[str, str | int]
    """What the KV depends on besides tokens: weights digest, dtype, layout (see kv.hashing.root_key)."""

    def execute(self, plan: StepPlan) -> StepResult: ...


class EngineCore:
    """Scheduler, KV cache and runner behind an inbox. `emit` receives each step's events on the engine thread."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tokenizer: Tokenizer,
        emit: Callable[[list[Event]], None],
    ) -> None:
        self.runner = runner
        self.tokenizer = tokenizer
        self.max_model_len = runner.max_model_len
        self.kv = KVManager(
            runner.n_blocks, config.block_size, enable_caching=config.enable_prefix_caching, extras=runner.kv_extras
        )
        self.scheduler = Scheduler(config, self.kv)
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
        self._next_uid = 0
        self._uid_lock = threading.Lock()
        self._last_step_s = 0.0
        self._last_step_tokens = 0

    # From any thread -------------------------------------------------------------------------------------------

    def add(self, request: Request) -> int:
        """Queue a checked request (see engine.admission); returns its uid. Raises EngineDead."""
        with self._uid_lock:
            request.uid = self._next_uid
            self._next_uid += 1
        self._post(lambda: self._add(request))
        return request.uid

    def abort(self, uid: int) -> None:
        """End a request at the next step's start; nothing happens if it has ended already."""
        with contextlib.suppress(EngineDead):
            self._post(lambda: self._abort(uid))

    def ask_stats(self, reply: Callable[[EngineStats], None]) -> None:
        """Call `reply` on the engine thread with a snapshot taken between two steps."""
        self._post(lambda: reply(self._snapshot()))

    def evict_cached(self, reply: Callable[[int], None]) -> None:
        """Forget every cached block that no answer holds; `reply` gets their number."""
        self._post(lambda: reply(self.kv.pool.evict_cached()))

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

    # The engine thread -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Step until stopped. An error outside a step's forward pass is a broken law: the engine dies and says so."""
        reason = "The server stopped, or unloaded the model, before the answer was complete."
        try:
            while True:
                with self._wake:
                    while not (self._inbox or self.scheduler.has_work or self._stopping):
                        self._wake.wait()
                    if self._stopping:
                        break
                self.step()
        except BaseException as error:
            log.exception("The engine has stopped")
            self.error = error
            reason = f"The engine has stopped: {error}"
        finally:
            self._close(reason)

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
        """Drain the inbox, plan, compute, commit, emit."""
        while self._inbox:
            self._inbox.popleft()()
        plan = self.scheduler.schedule()
        if self._debug:
            self.scheduler.check_plan(plan)
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
            self.counters.busy_s += self._last_step_s
            self._last_step_tokens = plan.n_tokens
        if self._debug:
            self.scheduler.check()
        self._flush()

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        """End the requests that broke the step, all of its requests if that is unknown; the others compute theirs again."""
        planned = {entry.seq.request.uid for entry in plan.entries}
        broken = planned & set(error.uids) if isinstance(error, BrokenLogits) else planned
        log.error("A step failed; %d of its %d requests end with an error", len(broken), len(planned), exc_info=error)
        for uid in broken:
            self._end(self.groups[uid], FinishReason.ERROR, f"The model could not compute this answer: {error}")
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
        self.scheduler.add(group.sequences[0])

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
        self._events.append(group.terminal(reason, error))

    def _note_started(self, plan: StepPlan) -> None:
        for entry in plan.entries:
            seq = entry.seq
            if seq.first_scheduled_s is None:
                seq.first_scheduled_s = time.monotonic()
                self.counters.prefix_queries += seq.n_prompt
                self.counters.cached_tokens += seq.n_cached
                queued_s = seq.first_scheduled_s - seq.request.arrival_s
                self._events.append(Started(seq.request.uid, seq.n_prompt, seq.n_cached, queued_s))

    def _snapshot(self) -> EngineStats:
        return snapshot(self.scheduler, self.counters, last_step_s=self._last_step_s, last_step_tokens=self._last_step_tokens)

    # Commit ----------------------------------------------------------------------------------------------------

    def _commit(self, plan: StepPlan, result: StepResult) -> None:
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
            if len(group.sequences) < group.request.params.n:
                self._fork(group)
            self._append(seq, sampled)
            if seq.finish_reason is not None:
                self.scheduler.remove(seq)
                if group.finished:
                    self._end(group, FinishReason.STOP)

    def _fork(self, group: RequestGroup) -> None:
        parent = group.sequences[0]
        for child in group.fork():
            if self.scheduler.can_run_more(1):
                self.kv.fork(parent, child)
                self.scheduler.add_running(child)
            else:
                child.n_computed = 0
                self.scheduler.add(child)

    def _keep_prompt_logprobs(self, entry: Entry, sampled: Sampled) -> None:
        kept = entry.seq.prompt_logprobs
        if kept is None or sampled.prompt_logprobs is None:
            return
        first = entry.start + entry.n_query - entry.n_logits + 1
        kept += sampled.prompt_logprobs[len(kept) - first :]

    def _append(self, seq: Sequence, sampled: Sampled) -> None:
        """Accept tokens one by one, and cut exactly where the answer ends; what was drawn after that is dropped."""
        text, token_ids = "", []
        logprobs: list[TokenLogprob] | None = [] if sampled.logprobs is not None else None
        if seq.first_token_s is None:
            seq.first_token_s = time.monotonic()
        for i, token_id in enumerate(sampled.token_ids):
            seq.token_ids.append(token_id)
            self.counters.output_tokens += 1
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
            self._events.append(
                Delta(
                    uid=seq.request.uid,
                    index=seq.index,
                    text=text,
                    token_ids=tuple(token_ids),
                    logprobs=tuple(logprobs) if logprobs is not None else None,
                    finish_reason=seq.finish_reason,
                    stop_reason=seq.stop_reason,
                )
            )
