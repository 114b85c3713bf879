"""Gauges and totals that are read from the engines when somebody scrapes."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.stats import EngineCounters, EngineStats

LABELS = ("model_name",)


class AllGauges:
    """Those of all models: a metric stands in the exposition once, with a sample for each of them."""

    def __init__(self) -> None:
        self.by_model: dict[str, Gauges] = {}

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for gauges in self.by_model.values():
            for family in gauges.collect():
                if family.name in families:
                    families[family.name].samples += family.samples
                else:
                    families[family.name] = family
        return families.values()


class Gauges:
    """What one model's engine says of itself now; nothing but zeros while it is not loaded."""

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
        blocks = GaugeMetricFamily("pagewell_kv_blocks", "KV blocks by state.", labels=(*LABELS, "state"))
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
        family = CounterMetricFamily(name, text, labels=LABELS)
        family.add_metric([self._model_name], value)
        return family

    def _totals(self, name: str, text: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=(*LABELS, label))
        for key, value in values.items():
            family.add_metric([self._model_name, key], value)
        return family

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric([self._model_name], value)
        return family
