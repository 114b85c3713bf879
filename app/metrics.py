"""Prometheus metrics: vLLM's names, so that its dashboards work, and Pagewell's own.

Gauges are read from the engine at scrape time. Totals and histograms grow from the engine's events as they pass, so
they survive an unload.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.host import ModelHost
from engine.async_engine import AsyncEngine
from engine.errors import EngineDead
from engine.stats import EngineCounters, EngineStats
from engine.types import Delta, Event, Finished, FinishReason, Started

CONTENT_TYPE = "text/plain; version=0.0.4"
_PATIENCE_S = 5.0
"""The engine answers between two steps; Prometheus gives up after 10 s."""
_LABELS = ("model_name",)
_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
_REQUEST_S = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


@dataclass(slots=True)
class _Live:
    """One request under way, as its events told."""

    arrival_s: float
    started_s: float
    n_prompt: int
    last_token_s: dict[int, float]


class Metrics:
    """All metrics of one server, in a registry of their own."""

    def __init__(self, host: ModelHost) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        self._host = host
        self._live: dict[int, _Live] = {}
        self._gauges = _Gauges(host.name)
        self.registry.register(self._gauges)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, (*_LABELS, *labels), registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, _LABELS, buckets=buckets, registry=self.registry).labels(host.name)

        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of admitted requests.").labels(host.name)
        self._output_tokens = counter("vllm:generation_tokens", "Tokens produced.").labels(host.name)
        self._queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.").labels(host.name)
        self._hits = counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.").labels(host.name)
        self._success = counter("vllm:request_success", "Answers that ended.", "finished_reason")
        self._requests = counter("vllm_requests", "Requests that ended, by outcome.", "status")
        self._tokens_generated = counter("vllm_tokens_generated", "Tokens produced.").labels(host.name)
        self._prefills = counter("pagewell_remote_prefills", "Prompts that a prefill server was to compute.", "outcome")
        self._ttft = histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", _TTFT_S)
        self._itl = histogram("vllm:inter_token_latency_seconds", "Between two tokens of an answer.", _TOKEN_S)
        self._per_token = histogram("vllm:time_per_output_token_seconds", "Mean of an answer after its first token.", _TOKEN_S)
        self._e2e = histogram("vllm:e2e_request_latency_seconds", "Arrival to the end of the answer.", _REQUEST_S)
        self._latency = histogram("vllm_request_latency_seconds", "Arrival to the end of the answer.", _REQUEST_S)
        self._queued = histogram("vllm:request_queue_time_seconds", "Arrival to the start of the prefill.", _REQUEST_S)
        self._prefill = histogram("vllm:request_prefill_time_seconds", "Start of the prefill to the first token.", _REQUEST_S)
        self._decode = histogram("vllm:request_decode_time_seconds", "First token to the end of the answer.", _REQUEST_S)
        self._n_prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self._n_output = histogram("vllm:request_generation_tokens", "Tokens produced for a request.", _TOKENS)
        host.on_ready.append(self._attach)

    def _attach(self, engine: AsyncEngine) -> None:
        self._live.clear()
        engine.observers.append(self.observe)

    def observe(self, event: Event) -> None:
        """Take note of one engine event; called on the event loop."""
        now = time.monotonic()
        if isinstance(event, Delta):
            self._observe_delta(event, now)
        elif isinstance(event, Started):
            self._live[event.uid] = _Live(now - event.queued_s, now, event.n_prompt, {})
            self._queued.observe(event.queued_s)
            self._queries.inc(event.n_prompt)
            self._hits.inc(event.n_cached)
            self._prompt_tokens.inc(event.n_prompt)
            self._n_prompt.observe(event.n_prompt)
        else:
            self._observe_end(event, now)

    def _observe_delta(self, event: Delta, now: float) -> None:
        n_tokens = len(event.token_ids)
        self._output_tokens.inc(n_tokens)
        self._tokens_generated.inc(n_tokens)
        if event.finish_reason is not None:
            self._success.labels(self._host.name, str(event.finish_reason)).inc()
        live = self._live.get(event.uid)
        if live is None or not n_tokens:
            return
        if not live.last_token_s:
            self._ttft.observe(now - live.arrival_s)
            self._prefill.observe(now - live.started_s)
        previous_s = live.last_token_s.get(event.index)
        live.last_token_s[event.index] = now
        if previous_s is not None:
            for _ in range(n_tokens):
                self._itl.observe((now - previous_s) / n_tokens)

    def _observe_end(self, event: Finished, now: float) -> None:
        self._live.pop(event.uid, None)
        usage = event.usage
        self._requests.labels(self._host.name, _OUTCOMES[event.reason]).inc()
        if event.reason is FinishReason.ABORT:
            self._success.labels(self._host.name, "abort").inc()
        if event.reason is not FinishReason.STOP:
            return
        self._e2e.observe(usage.total_s)
        self._latency.observe(usage.total_s)
        self._n_output.observe(usage.n_output)
        if usage.ttft_s is not None:
            self._decode.observe(usage.total_s - usage.ttft_s)
            if usage.n_output > 1:
                self._per_token.observe((usage.total_s - usage.ttft_s) / (usage.n_output - 1))

    def count_prefill(self, outcome: str) -> None:
        """Take note of what became of a prompt that a prefill server was to compute."""
        self._prefills.labels(self._host.name, outcome).inc()

    async def render(self) -> bytes:
        """The exposition text of this instant."""
        engine = self._host.current
        try:
            async with asyncio.timeout(_PATIENCE_S):
                self._gauges.stats = await engine.stats() if engine is not None else None
        except TimeoutError:
            pass  # a long step is under way; the snapshot before it stands
        except EngineDead:
            self._gauges.stats = None
        return generate_latest(self.registry)


_OUTCOMES = {FinishReason.STOP: "success", FinishReason.ABORT: "aborted", FinishReason.ERROR: "error"}


class _Gauges:
    """What the engine says of itself now; nothing but zeros while no model is loaded."""

    def __init__(self, model_name: str) -> None:
        self.stats: EngineStats | None = None
        self._model_name = model_name
        self._before: tuple[float, float] | None = None
        """Time and busy seconds at the last scrape."""

    def collect(self) -> Iterable[Metric]:
        stats = self.stats
        n_preempted = sum(row.status == "preempted" for row in stats.requests) if stats else 0
        running, waiting = (stats.n_running, stats.n_waiting) if stats else (0, 0)
        kv_use = stats.n_used / stats.n_blocks if stats else 0.0
        yield self._gauge("vllm:num_requests_running", "Answers that take part in steps.", running)
        yield self._gauge("vllm:num_requests_waiting", "Answers in the queue, preempted ones among them.", waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use; 1 is full.", kv_use)
        yield self._gauge("vllm:gpu_cache_usage_perc", "Share of KV blocks in use; 1 is full.", kv_use)
        yield self._gauge("vllm_requests_in_flight", "Answers running or waiting.", running + waiting)
        yield self._gauge("vllm_num_requests_preempted", "Answers that wait because their blocks were taken.", n_preempted)
        totals = stats.counters if stats else EngineCounters()
        yield self._total("vllm:num_preemptions", "Preemptions since the model was loaded.", totals.n_preemptions)
        preemptions = {"swap": totals.n_swaps, "recompute": totals.n_preemptions - totals.n_swaps}
        yield self._totals("pagewell_preemptions", "Preemptions by what became of the KV.", "kind", preemptions)
        yield self._total("pagewell_demoted_blocks", "KV blocks copied to host memory.", totals.n_demoted)
        yield self._total("pagewell_promoted_blocks", "KV blocks copied back from host memory.", totals.n_promoted)
        yield self._total("pagewell_stored_blocks", "KV blocks given to a disk, or to another server.", totals.n_stored)
        yield self._total("pagewell_fetched_blocks", "KV blocks that came from there.", totals.n_fetched)
        moved = {
            "device_to_host": totals.to_host_bytes,
            "host_to_device": totals.from_host_bytes,
            "host_to_disk": totals.to_disk_bytes,
            "disk_to_host": totals.from_disk_bytes,
        }
        yield self._totals("pagewell_kv_moved_bytes", "KV bytes copied between memories.", "way", moved)
        evictions = {"device": totals.n_evictions, "host": totals.n_host_evictions}
        yield self._totals("pagewell_kv_evictions", "KV blocks that made room, by where they lay.", "tier", evictions)
        away = totals.cached_host_tokens + totals.cached_disk_tokens
        hits = {
            "device": totals.cached_tokens - away,
            "host": totals.cached_host_tokens,
            "disk": totals.cached_disk_tokens,
        }
        yield self._totals("pagewell_prefix_cache_hits", "Prompt tokens found, by where their KV lay.", "tier", hits)
        yield self._total("pagewell_kv_damaged", "Files and blocks on disk that were damaged, and missed.", totals.n_damaged)
        yield self._gauge(
            "pagewell_kv_waste_ratio", "Share of used KV blocks that holds no token.", stats.waste if stats else 0.0
        )
        yield self._gauge("pagewell_kv_disk_bytes", "KV on disk, of all models.", stats.disk_bytes if stats else 0)
        most = stats.disk_most_bytes if stats else 0
        yield self._gauge("pagewell_kv_disk_limit_bytes", "Most KV on disk; 0: none is kept there.", most)
        yield self._total("pagewell_steps", "Steps since the model was loaded.", totals.n_steps)
        yield self._total("pagewell_step_seconds", "Seconds spent in steps since the model was loaded.", totals.busy_s)
        busy = self._utilisation(stats)
        yield self._gauge("vllm_gpu_utilization", "Share of the time since the last scrape that went into steps.", busy)
        blocks = GaugeMetricFamily("pagewell_kv_blocks", "KV blocks by state.", labels=(*_LABELS, "state"))
        for state in ("free", "cached", "pinned", "used", "shared", "host_used", "disk_blocks"):
            name = {"host_used": "host", "disk_blocks": "disk"}.get(state, state)
            blocks.add_metric([self._model_name, name], getattr(stats, f"n_{state}") if stats else 0)
        yield blocks

    def _utilisation(self, stats: EngineStats | None) -> float:
        now = (stats.time_s, stats.counters.busy_s) if stats else None
        before, self._before = self._before, now
        if now is None or before is None or now[0] <= before[0] or now[1] < before[1]:  # a new engine counts from zero
            return 0.0
        return min(1.0, (now[1] - before[1]) / (now[0] - before[0]))

    def _total(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=_LABELS)
        family.add_metric([self._model_name], value)
        return family

    def _totals(self, name: str, text: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=(*_LABELS, label))
        for key, value in values.items():
            family.add_metric([self._model_name, key], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=_LABELS)
        family.add_metric([self._model_name], value)
        return family
