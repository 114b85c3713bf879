"""Frames for the dashboard's tests: one busy moment of a small server, with times that never move by themselves."""

from __future__ import annotations

from typing import Any

import msgspec

from tui.feed.model import (
    CACHED,
    FREE,
    SHARED,
    USED,
    Frame,
    KeyFrame,
    Latency,
    Model,
    Point,
    Process,
    Rates,
    RequestRow,
    Run,
    Totals,
)

NOW = 1_800_000_000.0

RUNS = (
    Run(SHARED, 11, 12),
    Run(USED, 11, 40),
    Run(USED, 12, 25),
    Run(CACHED, -1, 31),
    Run(USED, 13, 3),
    Run(FREE, -1, 401),
)


def row(uid: int, state: str = "running", **fields: Any) -> RequestRow:
    values = {"index": 0, "id": f"req-{uid}", "n_prompt": 800, "n_cached": 192, "n_computed": 840, "n_output": 40}
    values |= {"n_blocks": 53, "arrived_s": NOW - 12.4, "ttft_s": 0.42, "tok_s": 23.5}
    if state in ("completed", "aborted", "failed"):
        values |= {"ended_s": NOW - 2.0, "n_blocks": 0}
    return RequestRow(uid=uid, state=state, **(values | fields))


ROWS = (
    row(9, "completed", id="chatcmpl-done", n_output=128),
    row(11, id="agent-one"),
    row(12, id="agent-two", n_prompt=400, n_blocks=37, arrived_s=NOW - 5),
    row(13, id="chat-three", n_output=0, n_cached=0, n_computed=400, n_blocks=3, ttft_s=None, tok_s=0.0, arrived_s=NOW - 1),
    row(14, "preempted", id="agent-four", n_output=7, n_blocks=0, arrived_s=NOW - 3),
    row(15, "pending", id="agent-five", n_output=0, n_computed=0, n_cached=0, n_blocks=0, ttft_s=None, tok_s=0.0, arrived_s=NOW),
)


def totals(runs: tuple[Run, ...], rows: tuple[RequestRow, ...]) -> Totals:
    n = {state: sum(run.count for run in runs if run.state == state) for state in (FREE, USED, SHARED, CACHED)}
    return Totals(
        n_running=sum(r.state == "running" for r in rows),
        n_waiting=sum(r.state in ("pending", "preempted") for r in rows),
        n_blocks=sum(n.values()),
        n_free=n[FREE],
        n_cached=n[CACHED],
        n_shared=n[SHARED],
        n_used=n[USED] + n[SHARED],
        last_step_s=0.041,
        last_step_tokens=64,
        n_preemptions=1,
        n_swaps=1,
        n_host_blocks=120,
        n_host_used=9,
        n_disk_blocks=375,
        disk_bytes=133 << 20,
        disk_most_bytes=8 << 30,
        n_promoted=4,
        n_evictions=17,
        waste=0.0213,
        cached_host_tokens=120,
        cached_disk_tokens=80,
        to_host_bytes=140 << 20,
        from_host_bytes=3 << 20,
        to_disk_bytes=133 << 20,
        from_disk_bytes=2 << 20,
        prompt_tokens=2000,
        cached_tokens=600,
        output_tokens=12_345,
        prefix_queries=1000,
    )


def frame(seq: int = 1, *, runs: tuple[Run, ...] = RUNS, rows: tuple[RequestRow, ...] = ROWS, **fields: Any) -> Frame:
    values: dict[str, Any] = {
        "time_s": NOW,
        "age_s": 0.0,
        "control": "open",
        "model": Model(
            state="ready", name="SmolLM2-135M-Instruct", progress=1.0, quantization="Q4_1", dtype="float32", max_model_len=8192,
            n_params=134_515_008, weights_bytes=98 << 20, kv_bytes=180 << 20, block_size=16,
        ),
        "totals": totals(runs, rows),
        "rates": Rates(output_tok_s=46.8, prompt_tok_s=410.0, steps_s=23.4, busy=0.96),
        "latency": Latency(ttft_p50_s=0.42, ttft_p95_s=1.31, itl_p50_s=0.041, itl_p95_s=0.052),
        "process": Process(
            up_s=754, cpu_cores=1.9, n_cores=2, rss_bytes=412 << 20, host_used_bytes=3 << 30, host_total_bytes=24 << 30
        ),
        "n_hidden": 0,
    }  # fmt: skip
    return Frame(seq=seq, requests=rows, blocks=runs, **(values | fields))


def history(end_s: float = NOW) -> tuple[Point, ...]:
    """Five minutes in which generation rises and prefill comes in bursts."""
    return tuple(
        Point(end_s - 300 + second, second / 6, 410.0 if second % 40 < 10 else 0.0, 3, 2, 0.2, 0.1) for second in range(301)
    )


def key_event(shown: Frame, points: tuple[Point, ...] | None = None) -> bytes:
    """The frame as a `key` event of the feed."""
    data = msgspec.json.encode(KeyFrame(frame=shown, history=history() if points is None else points))
    return b"event: key\nid: %d\ndata: %b\n\n" % (shown.seq, data)
