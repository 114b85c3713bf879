"""Limits of control groups, as containers see them, from files of both versions."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from engine.runner import cgroup, memory

MIB = 1 << 20
NO_LIMIT_V1 = 9223372036854771712


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cgroup, "MEMBERSHIP", tmp_path / "cgroup")
    monkeypatch.setattr(cgroup, "MOUNT", tmp_path / "mount")
    return tmp_path / "mount"


def joined(mount: Path, *lines: str) -> None:
    (mount.parent / "cgroup").write_text("".join(f"{line}\n" for line in lines))


def group(folder: Path, limit: int | str, used: int, inactive_file: int = 0, *, v1: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max", "memory.current")
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    of_all_below = f"inactive_file 0\ntotal_inactive_file {inactive_file}" if v1 else f"inactive_file {inactive_file}"
    (folder / "memory.stat").write_text(f"active_file {used}\n{of_all_below}\n")


def test_a_container_of_version_2_has_what_its_limit_leaves(mount: Path) -> None:
    joined(mount, "0::/")
    group(mount, 100 * MIB, 70 * MIB, 20 * MIB)
    assert cgroup.left_bytes() == 50 * MIB
    assert memory.free_bytes(torch.device("cpu")) == 50 * MIB


def test_the_tightest_group_on_the_way_to_the_root_decides(mount: Path) -> None:
    joined(mount, "0::/user.slice/app.scope")
    group(mount / "user.slice/app.scope", "max", 10 * MIB)
    group(mount / "user.slice", 300 * MIB, 290 * MIB)
    mount.joinpath("cgroup.procs").write_text("1\n")
    assert cgroup.left_bytes() == 10 * MIB
    group(mount / "user.slice/app.scope", 15 * MIB, 10 * MIB)
    assert cgroup.left_bytes() == 5 * MIB


def test_version_1(mount: Path) -> None:
    joined(mount, "9:name=systemd:/", "4:cpu,memory:/docker/f00", "0::/")
    group(mount / "memory", NO_LIMIT_V1, 900 * MIB, v1=True)
    group(mount / "memory/docker/f00", 64 * MIB, 60 * MIB, 1 * MIB, v1=True)
    assert cgroup.left_bytes() == 5 * MIB


@pytest.mark.parametrize("name", ["/docker/f00", "/../docker/f00"])
def test_a_group_named_as_on_the_host_is_the_mounted_root(name: str, mount: Path) -> None:
    joined(mount, f"4:memory:{name}")
    group(mount / "memory", 64 * MIB, 60 * MIB, v1=True)
    group(mount / "docker/f00", 1 * MIB, 1 * MIB, v1=True)
    assert cgroup.left_bytes() == 4 * MIB


def test_more_in_use_than_allowed_leaves_nothing(mount: Path) -> None:
    joined(mount, "0::/")
    group(mount, 100 * MIB, 101 * MIB)
    assert cgroup.left_bytes() == 0


def test_no_limit_and_no_control_groups_leave_what_the_machine_has(mount: Path) -> None:
    assert cgroup.left_bytes() is None
    joined(mount, "0::/")
    group(mount, "max", 70 * MIB)
    assert cgroup.left_bytes() is None
    group(mount, 1 << 60, 0)
    assert memory.free_bytes(torch.device("cpu")) <= psutil.virtual_memory().total


def quota(folder: Path, quota_us: int | str, *, v1: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if v1:
        (folder / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
        (folder / "cpu.cfs_period_us").write_text("100000\n")
    else:
        (folder / "cpu.max").write_text(f"{quota_us} 100000\n")


def test_the_tightest_quota_on_the_way_to_the_root_decides(mount: Path) -> None:
    assert cgroup.cores() is None
    joined(mount, "0::/user.slice/app.scope")
    quota(mount / "user.slice/app.scope", "max")
    assert cgroup.cores() is None
    quota(mount / "user.slice", 250_000)
    assert cgroup.cores() == 2.5
    quota(mount / "user.slice/app.scope", 50_000)
    assert cgroup.cores() == 0.5


def test_quotas_of_version_1(mount: Path) -> None:
    joined(mount, "5:cpu,cpuacct:/docker/f00", "4:memory:/docker/f00", "0::/")
    quota(mount / "cpu", -1, v1=True)
    group(mount / "memory/docker/f00", 64 * MIB, 60 * MIB, v1=True)
    assert cgroup.cores() is None
    quota(mount / "cpu/docker/f00", 150_000, v1=True)
    assert cgroup.cores() == 1.5 and cgroup.left_bytes() == 4 * MIB
