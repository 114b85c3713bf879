"""How many cores there are to use: by affinity, by the quota of a container, and as the pool of the operators counts them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from app.machine import this_machine
from engine.runner import cgroup, cores, threads
from kernels.cpu import launch

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages of two cores of two threads each, of which threads 1 to 7 may be used; no quota."""
    for cpu in range(8):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{cpu // 4}\n")
        (folder / "core_id").write_text(f"{cpu // 2 % 2}\n")
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(1, 8)}, raising=False)
    monkeypatch.setattr(cgroup, "cores", lambda: None)


@pytest.mark.usefixtures("topology")
def test_threads_of_one_core_count_once() -> None:
    assert (cores.physical(), cores.logical()) == (4, 7)


@pytest.mark.usefixtures("topology")
@pytest.mark.parametrize(("quota", "counts"), [(6.5, (4, 6)), (2.5, (2, 2)), (1.0, (1, 1)), (0.3, (1, 1))])
def test_a_quota_leaves_whole_cores_and_at_least_one(
    quota: float, counts: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "cores", lambda: quota)
    assert (cores.physical(), cores.logical()) == counts
    machine = this_machine()
    assert (machine.n_cores, machine.n_threads) == counts
    threads.use(None)
    assert torch.get_num_threads() == counts[0]
    assert launch.missing is not None or launch.native.n_threads() == counts[0]
    monkeypatch.undo()
    threads.use(None)


@pytest.mark.usefixtures("topology")
def test_where_the_system_tells_of_no_cores_each_thread_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "TOPOLOGY", Path("/nowhere"))
    assert cores.physical() == 7


@needs_affinity
@pytest.mark.skipif(launch.missing is not None, reason=f"no native operators: {launch.missing}")
def test_the_pool_of_the_operators_counts_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "cores", lambda: None)
    allowed = os.sched_getaffinity(0)
    try:
        for cpus in (allowed, {min(allowed)}):
            os.sched_setaffinity(0, cpus)
            assert launch.native.physical_cores() == cores.physical() <= len(cpus)
    finally:
        os.sched_setaffinity(0, allowed)
