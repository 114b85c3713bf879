"""Prometheus metrics: vLLM's names, so that its dashboards work, and Pagewell's own.

Gauges are read from the engine at scrape time. Totals and histograms grow from the engine's events as they pass, so
they survive an unload.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

from app.gauges import LABELS, AllGauges, Gauges
from app.models.host import ModelHost
from app.models.pool import ModelPool
from engine.async_engine import AsyncEngine
from engine.errors import EngineDead
from engine.types import Delta, Event, Finished, FinishReason, Started

CONTENT_TYPE = "text/plain; version=0.0.4"
_PATIENCE_S = 5.0
"""The engine answers between two steps; Prometheus gives up after 10 s."""
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
    """All metrics of one server, in a registry of their own. Models are told apart by the label model_name."""

    def __init__(self, pool: ModelPool) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        self._pool = pool
        self._families = _Families(self.registry)
        self._models: dict[str, _Model] = {}
        """Those that were loaded since the start, and the main one."""
        self._gauges = AllGauges()
        self.registry.register(self._gauges)
        self._model(pool.main.name)
        pool.each_host(self._follow)

    def _follow(self, host: ModelHost) -> None:
        host.on_ready.append(lambda engine: self._attach(self._model(host.name), engine))

    def _model(self, name: str) -> _Model:
        if name not in self._models:
            self._models[name] = _Model(self._families, name)
            self._gauges.by_model[name] = Gauges(name)
        return self._models[name]

    def _attach(self, model: _Model, engine: AsyncEngine) -> None:
        model.live.clear()
        engine.observers.append(model.observe)

    def count_prefill(self, model_name: str, outcome: str) -> None:
        """Take note of what became of a prompt that a prefill server was to compute."""
        self._families.prefills.labels(model_name, outcome).inc()

    async def render(self) -> bytes:
        """The exposition text of this instant."""
        hosts = {host.name: host for host in self._pool.hosts}
        await asyncio.gather(*(self._ask(name, hosts.get(name)) for name in self._models))
        return generate_latest(self.registry)

    async def _ask(self, name: str, host: ModelHost | None) -> None:
        engine = host.current if host is not None else None
        gauges = self._gauges.by_model[name]
        try:
            async with asyncio.timeout(_PATIENCE_S):
                gauges.stats = await engine.stats() if engine is not None else None
        except TimeoutError:
            pass  # a long step is under way; the snapshot before it stands
        except EngineDead:
            gauges.stats = None


class _Families:
    """What grows from engines' events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, (*LABELS, *labels), registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, LABELS, buckets=buckets, registry=registry)

        self.prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of admitted requests.")
        self.output_tokens = counter("vllm:generation_tokens", "Tokens produced.")
        self.queries = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.hits = counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.success = counter("vllm:request_success", "Answers that ended.", "finished_reason")
        self.requests = counter("vllm_requests", "Requests that ended, by outcome.", "status")
        self.tokens_generated = counter("vllm_tokens_generated", "Tokens produced.")
        self.prefills = counter("pagewell_remote_prefills", "Prompts that a prefill server was to compute.", "outcome")
        self.ttft = histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", _TTFT_S)
        self.itl = histogram("vllm:inter_token_latency_seconds", "Between two tokens of an answer.", _TOKEN_S)
        self.per_token = histogram("vllm:time_per_output_token_seconds", "Mean of an answer after its first token.", _TOKEN_S)
        self.e2e = histogram("vllm:e2e_request_latency_seconds", "Arrival to the end of the answer.", _REQUEST_S)
        self.latency = histogram("vllm_request_latency_seconds", "Arrival to the end of the answer.", _REQUEST_S)
        self.queued = histogram("vllm:request_queue_time_seconds", "Arrival to the start of the prefill.", _REQUEST_S)
        self.prefill = histogram("vllm:request_prefill_time_seconds", "Start of the prefill to the first token.", _REQUEST_S)
        self.decode = histogram("vllm:request_decode_time_seconds", "First token to the end of the answer.", _REQUEST_S)
        self.n_prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.n_output = histogram("vllm:request_generation_tokens", "Tokens produced for a request.", _TOKENS)


class _Model:
    """One model's part of them."""

    def __init__(self, families: _Families, name: str) -> None:
        self.live: dict[int, _Live] = {}
        self._name = name
        self._success, self._requests = families.success, families.requests
        for family, value in vars(families).items():
            if family not in ("success", "requests", "prefills"):
                setattr(self, f"_{family}", value.labels(name))

    def observe(self, event: Event) -> None:
        """Take note of one engine event; called on the event loop."""
        now = time.monotonic()
        if isinstance(event, Delta):
            self._observe_delta(event, now)
        elif isinstance(event, Started):
            self.live[event.uid] = _Live(now - event.queued_s, now, event.n_prompt, {})
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
            self._success.labels(self._name, str(event.finish_reason)).inc()
        live = self.live.get(event.uid)
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
        self.live.pop(event.uid, None)
        usage = event.usage
        self._requests.labels(self._name, _OUTCOMES[event.reason]).inc()
        if event.reason is FinishReason.ABORT:
            self._success.labels(self._name, "abort").inc()
        if event.reason is not FinishReason.STOP:
            return
        self._e2e.observe(usage.total_s)
        self._latency.observe(usage.total_s)
        self._n_output.observe(usage.n_output)
        if usage.ttft_s is not None:
            self._decode.observe(usage.total_s - usage.ttft_s)
            if usage.n_output > 1:
                self._per_token.observe((usage.total_s - usage.ttft_s) / (usage.n_output - 1))


_OUTCOMES = {FinishReason.STOP: "success", FinishReason.ABORT: "aborted", FinishReason.ERROR: "error"}
