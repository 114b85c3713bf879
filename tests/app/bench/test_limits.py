"""Measured limits: everything that this machine has is measured, the pool is left as it was, and others' work is seen."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.bench import limits, others
from app.bench.limits import Limit, Limits
from app.cli import cli
from engine.errors import ConfigError
from kernels.cpu import launch
from kernels.cpu.launch import missing, native

needs_native = pytest.mark.skipif(missing is not None, reason=str(missing))


@needs_native
def test_every_limit_of_this_machine_is_measured_and_the_pool_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_ROUNDS", 64)
    n_threads, level = native.n_threads(), native.level()
    ran: list[int] = []
    found = limits.measure((1, 2), runs=3, on_run=lambda: ran.append(1), sizes=(1 << 20, 3 << 20))
    assert (len(ran), native.n_threads(), native.level()) == (3, n_threads, level)
    assert len(found.all) == 2 * (2 + 2 * len(native.levels()))
    assert all(len(limit.rates) == 3 and limit.rate > 0 for limit in found.all)
    assert found.rate("read", 2) == next(x.rate for x in found.all if x.threads == 2 and x.n_bytes == 3 << 20)
    assert found.rate("int8", 1) == next(x.rate for x in found.all if (x.what, x.threads, x.level) == ("int8", 1, level))
    assert any(line.startswith("read 3 MiB, GB/s") for line in limits.lines(found))
    assert found.result()["limits"][0]["rate"] == found.all[0].rate


@needs_native
@pytest.mark.parametrize("n_bytes", [1024, (1 << 20) - 1024, (1 << 20) + 1024])
def test_reads_of_any_number_of_kibibytes(n_bytes: int) -> None:
    data = limits.buffer(n_bytes)
    for ahead in (0, 4096):
        assert native.read_rate(data.data_ptr(), n_bytes, ahead, 2) > 0


def test_limits_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "missing", "the extension module was not built")
    monkeypatch.setattr(launch, "remedy", "Build it.")
    with pytest.raises(ConfigError, match="was not built.\nBuild it."):
        limits.measure((1,))
    result = CliRunner().invoke(cli, ["bench", "limits", "--runs", "1"])
    assert isinstance(result.exception, ConfigError)


def test_threads_that_share_a_core_are_told() -> None:
    def found(two: float) -> list[str]:
        rates = (Limit("f32", 1, "avx2", rates=[100.0]), Limit("f32", 2, "avx2", rates=[two]))
        return limits.lines(Limits("avx2", [*rates]))

    assert "2 threads compute 1.9 times what one does: they are cores of their own." in found(190.0)
    assert any("share cores" in line for line in found(110.0))
    assert any("do not trust" in line for line in limits.lines(Limits("avx2", [Limit("f32", 1, "avx2", rates=[1.0])], 0.7)))


def test_the_work_of_other_programs_is_seen_and_that_of_ones_own_is_not() -> None:
    program = "import time; end = time.monotonic() + 30\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", program]) as busy:
        stranger, own = others.Others(), others.Others([busy.pid])
        time.sleep(0.5)
        seen, left = stranger.cores(), own.cores()
        began = time.monotonic()
        assert not others.wait_quiet(0.2) and time.monotonic() - began < 20
        busy.kill()
    assert seen > left + 0.2
    assert others.warning(0.05) is None and "0.5 cores" in str(others.warning(0.5))


@pytest.mark.parametrize("command", [["limits"], ["ops"], ["serve", "http://127.0.0.1:1"], ["compare"], ["perplexity", "m.gguf"]])
def test_a_results_file_that_cannot_be_is_refused_before_anything_is_measured(command: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["bench", *command, "--json", str(tmp_path / "none" / "x.json")])
    assert result.exit_code == 2 and "there is no folder" in result.output
