"""What Prometheus reads of the KV cache: blocks by state, hits and evictions by tier, preemptions by kind, bytes by way."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from app.gauges import Gauges
from tests.app.http.test_surfaces import samples
from tests.app.stats.test_compose import different_stats


def read(stats: Any) -> dict[str, float]:
    registry, gauges = CollectorRegistry(), Gauges("m")
    gauges.stats = stats
    registry.register(gauges)
    return samples(generate_latest(registry).decode())


def test_each_figure_of_the_kv_cache_has_its_own_sample() -> None:
    stats = different_stats()
    total, found = stats.counters, read(stats)

    def labelled(name: str, label: str) -> dict[str, float]:
        rows = {key: value for key, value in found.items() if key.startswith(name + "{")}
        return {key.split(f'{label}="')[1].split('"')[0]: value for key, value in rows.items()}

    assert labelled("pagewell_kv_blocks", "state") == {
        "free": stats.n_free, "cached": stats.n_cached, "pinned": stats.n_pinned, "used": stats.n_used,
        "shared": stats.n_shared, "host": stats.n_host_used, "disk": stats.n_disk_blocks,
    }  # fmt: skip
    assert labelled("pagewell_prefix_cache_hits_total", "tier") == {
        "device": total.cached_tokens - total.cached_host_tokens - total.cached_disk_tokens,
        "host": total.cached_host_tokens,
        "disk": total.cached_disk_tokens,
    }
    assert labelled("pagewell_preemptions_total", "kind") == {
        "swap": total.n_swaps, "recompute": total.n_preemptions - total.n_swaps,
    }  # fmt: skip
    assert labelled("pagewell_kv_evictions_total", "tier") == {"device": total.n_evictions, "host": total.n_host_evictions}
    assert labelled("pagewell_kv_moved_bytes_total", "way") == {
        "device_to_host": total.to_host_bytes, "host_to_device": total.from_host_bytes,
        "host_to_disk": total.to_disk_bytes, "disk_to_host": total.from_disk_bytes,
    }  # fmt: skip
    for name, value in {
        "pagewell_kv_damaged_total": total.n_damaged,
        "pagewell_kv_waste_ratio": stats.waste,
        "pagewell_kv_disk_bytes": stats.disk_bytes,
        "pagewell_kv_disk_limit_bytes": stats.disk_most_bytes,
    }.items():
        assert found[f'{name}{{model_name="m"}}'] == value, name


def test_without_a_model_each_is_there_and_zero() -> None:
    loaded, unloaded = read(different_stats()), read(None)
    assert unloaded.keys() == loaded.keys() and not any(unloaded.values())
