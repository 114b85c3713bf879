"""Engine statistics and answers turned into the sections of a frame. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from app.stats.answers import Answer, Answers
from app.stats.frames import RequestRow, TotalsSection
from engine.stats import EngineStats, RequestStats

MAX_WAITING_ROWS = 100
"""Waiting answers beyond these are only counted."""

_STATES = {"waiting": "pending", "running": "running", "preempted": "preempted"}


def totals(stats: EngineStats) -> TotalsSection:
    counters = stats.counters
    return TotalsSection(
        n_running=stats.n_running,
        n_waiting=stats.n_waiting,
        n_blocks=stats.n_blocks,
        n_free=stats.n_free,
        n_cached=stats.n_cached,
        n_shared=stats.n_shared,
        n_used=stats.n_used,
        n_wasted_tokens=stats.n_wasted_tokens,
        waste=round(stats.waste, 4),
        n_pinned=stats.n_pinned,
        n_host_blocks=stats.n_host_blocks,
        n_host_used=stats.n_host_used,
        n_disk_blocks=stats.n_disk_blocks,
        disk_bytes=stats.disk_bytes,
        disk_most_bytes=stats.disk_most_bytes,
        last_step_s=round(stats.last_step_s, 4),
        last_step_tokens=stats.last_step_tokens,
        n_steps=counters.n_steps,
        n_preemptions=counters.n_preemptions,
        n_swaps=counters.n_swaps,
        n_demoted=counters.n_demoted,
        n_promoted=counters.n_promoted,
        n_stored=counters.n_stored,
        n_fetched=counters.n_fetched,
        n_evictions=counters.n_evictions,
        n_host_evictions=counters.n_host_evictions,
        to_host_bytes=counters.to_host_bytes,
        from_host_bytes=counters.from_host_bytes,
        to_disk_bytes=counters.to_disk_bytes,
        from_disk_bytes=counters.from_disk_bytes,
        n_damaged=counters.n_damaged,
        n_requests=counters.n_requests,
        n_finished=counters.n_finished,
        n_aborted=counters.n_aborted,
        n_failed=counters.n_failed,
        prompt_tokens=counters.prompt_tokens,
        cached_tokens=counters.cached_tokens,
        cached_host_tokens=counters.cached_host_tokens,
        cached_disk_tokens=counters.cached_disk_tokens,
        output_tokens=counters.output_tokens,
        prefix_queries=counters.prefix_queries,
    )


def rows(
    parts: Iterable[tuple[str, EngineStats]], answers: Answers, wall_offset_s: float, previous: Iterable[RequestRow]
) -> tuple[tuple[RequestRow, ...], int]:
    """Rows by (uid, index), and how many waiting answers are not among them.

    parts: (model, its statistics) of each in memory. wall_offset_s: Unix time minus monotonic time. previous: the last frame's
    rows, which remember the client's id of an answer that ended since.
    """
    ended = {(answer.uid, answer.index): answer for answer in answers.ended()}
    ids = {row.uid: row.id for row in previous}
    table: dict[tuple[int, int], RequestRow] = {}
    n_waiting = n_hidden = 0
    for model, now_s, request in ((model, of.time_s + wall_offset_s, r) for model, of in parts for r in of.requests):
        key = (request.uid, request.index)
        ids[request.uid] = request.request_id
        if key in ended or request.status not in _STATES:
            continue
        if request.status == "waiting":
            n_waiting += 1
            if n_waiting > MAX_WAITING_ROWS:
                n_hidden += 1
                continue
        table[key] = _live_row(request, model, now_s)
    for key, answer in ended.items():
        table[key] = _ended_row(answer, ids.get(answer.uid, ""), wall_offset_s)
    return tuple(table[key] for key in sorted(table)), n_hidden


def _live_row(request: RequestStats, model: str, now_s: float) -> RequestRow:
    return RequestRow(
        uid=request.uid,
        index=request.index,
        id=request.request_id,
        model=model,
        state=_STATES[request.status],
        n_prompt=request.n_prompt,
        n_cached=request.n_cached,
        n_computed=request.n_computed,
        n_output=request.n_output,
        n_blocks=request.n_blocks,
        # Tenths: a row that did not move must stay equal from sample to sample.
        arrived_s=round(now_s - request.age_s, 1),
        ttft_s=None if request.ttft_s is None else round(request.ttft_s, 4),
        tok_s=round(request.tok_s, 1),
    )


def _ended_row(answer: Answer, request_id: str, wall_offset_s: float) -> RequestRow:
    return RequestRow(
        uid=answer.uid,
        index=answer.index,
        id=request_id,
        model=answer.model,
        state=answer.state,
        n_prompt=answer.n_prompt,
        n_cached=answer.n_cached,
        n_computed=answer.n_prompt + answer.n_output if answer.n_output else answer.n_cached,
        n_output=answer.n_output,
        n_blocks=0,
        arrived_s=round(answer.arrived_s + wall_offset_s, 1),
        ended_s=round(answer.ended_s + wall_offset_s, 1),
        ttft_s=None if answer.first_token_s is None else round(answer.first_token_s - answer.arrived_s, 4),
        tok_s=round(answer.tok_s, 1),
    )
