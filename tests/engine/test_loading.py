"""What a load says, and what it leaves behind in memory."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

import kernels.cpu
from engine import loading
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kv.tiers.connectors import Connectors
from engine.kv.tiers.disk_tier import DiskTier
from engine.kv.tiers.shared_tier import SharedTier
from engine.loading import load_core
from engine.runner import runner
from engine.runner.runner import ModelRunner
from engine.weights.loader import open_checkpoint
from kernels import registry
from kernels.cpu import launch, support
from tests import models
from tests.engine.models import tiny
from tests.engine.weights.test_pages import resident_bytes

ROOT = Path(__file__).parents[2]
needs_native = pytest.mark.skipif(launch.missing is not None, reason=f"no native operators: {launch.missing}")
CONFIG = EngineConfig(device="cpu", max_model_len=64, kv_cache_memory=8 << 20)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[..., list[str]]:
    """What is said about plain torch when a model is built twice."""
    runner._warn_of_plain_torch.cache_clear()

    def said(path: Path, **knobs: Any) -> list[str]:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                ModelRunner(EngineConfig(device="cpu", kv_cache_memory=8 << 20, **knobs), open_checkpoint(path))
        return [record.getMessage() for record in caplog.records if "Plain torch" in record.getMessage()]

    return said


def test_a_model_that_runs_without_native_operators_says_so_once_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, warnings: Callable[..., list[str]], tmp_path: Path
) -> None:
    for module in (launch, support):
        monkeypatch.setattr(module, "missing", "no compiler was found")
    monkeypatch.setattr(launch, "remedy", "Install one.")
    monkeypatch.setattr(registry, "_resolved", {})
    tiny.saved(tmp_path, "llama")
    (said,) = warnings(tmp_path)
    assert "quant_linear" in said and said.endswith(": no compiler was found. Install one.")


@needs_native
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_activations_that_native_operators_do_not_take_are_named(
    dtype: str, warnings: Callable[..., list[str]], tmp_path: Path
) -> None:
    tiny.saved(tmp_path, "llama")
    (said,) = warnings(tmp_path, dtype=dtype)
    assert "paged_attention" in said and f"computes on float32 activations, not on {dtype}. Leave --dtype at auto." in said


@needs_native
def test_heads_that_native_operators_do_not_take_are_named(warnings: Callable[..., list[str]], tmp_path: Path) -> None:
    tiny.saved(tmp_path, "llama", head_dim=592)
    (said,) = warnings(tmp_path)
    assert "heads of 592 dims, more than 576" in said and "quant_linear" not in said


def launch_beside(native: SimpleNamespace | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A copy of launch.py in a folder of its own, beside another native module, or none."""
    copy = folder / "kernels" / "cpu" / "launch.py"
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(Path(launch.__file__).read_text("utf-8"))
    monkeypatch.setitem(sys.modules, "kernels.cpu._native", native)
    monkeypatch.delattr(kernels.cpu, "_native", raising=False)
    if native is not None:
        monkeypatch.setattr(kernels.cpu, "_native", native, raising=False)
    spec = importlib.util.spec_from_file_location("launch_beside", copy)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("level", ["", "avx7"])
@pytest.mark.parametrize(("checkout", "again"), [(True, "run make native."), (False, "install Pagewell again")])
@pytest.mark.parametrize(("left", "missing"), [(None, "were not built"), ("no compiler\n", "were not built: no compiler")])
def test_who_has_no_native_module_is_told_to_build_it(
    left: str | None, missing: str, checkout: bool, again: str, level: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(launch.LEVEL_ENV, level)
    if checkout:
        (tmp_path / "native_build.py").touch()
    if left is not None:
        (tmp_path / "kernels" / "cpu").mkdir(parents=True)
        (tmp_path / "kernels" / "cpu" / "_native_missing.txt").write_text(left)
    found = launch_beside(None, tmp_path, monkeypatch)
    assert missing in found.missing and found.native is None and not found.misnamed
    assert "Install a C++20 compiler" in found.remedy and again in found.remedy


@pytest.mark.parametrize(
    ("levels", "level", "missing", "remedy", "misnamed"),
    [
        ([], "", "none of the instruction sets", "They need AVX2", False),
        ([], "avx7", "none of the instruction sets", "They need AVX2", False),
        (["avx2", "avx512"], "avx7", "PAGEWELL_ISA is 'avx7'", "one of avx2, avx512,", True),
        (["avx2", "avx7"], "avx7", "None", "", False),
        (["avx2"], "", "None", "", False),
    ],
)
def test_who_has_one_is_not_told_to_build_it(
    levels: list[str], level: str, missing: str, remedy: str, misnamed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(launch.LEVEL_ENV, level)
    found = launch_beside(SimpleNamespace(levels=lambda: levels), tmp_path, monkeypatch)
    assert missing in str(found.missing) and remedy in found.remedy and found.misnamed == misnamed
    assert "compiler" not in found.remedy


@needs_native
@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("doctor",), ("bench", "ops")])
def test_an_instruction_set_that_is_not_there_is_an_error_that_names_those_that_are(command: tuple[str, ...]) -> None:
    argument = (str(models.smollm2()),) if command[0] != "bench" else ()
    environment = {**os.environ, launch.LEVEL_ENV: "avx1024"}
    found = subprocess.run(
        [sys.executable, "-m", "app.cli", *command, *argument],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 2 and "Traceback" not in found.stderr
    assert "PAGEWELL_ISA is 'avx1024'" in found.stderr and f"one of {', '.join(launch.native.levels())}" in found.stderr


@needs_native
def test_with_native_operators_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        info = load_core(models.smollm2(), CONFIG).info
    assert not [record for record in caplog.records if "Plain torch" in record.getMessage()]
    assert info.quantization == "Q4_1" and info.weights_bytes > 80 << 20


@pytest.mark.skipif(launch.missing is not None or sys.platform != "linux", reason="packs nothing, or has no /proc")
def test_after_a_load_the_file_is_not_in_memory_beside_what_was_packed_of_it() -> None:
    loaded = load_core(models.smollm2(), CONFIG)
    assert resident_bytes(models.smollm2()) < 8 << 20 < loaded.info.weights_bytes


def test_a_load_imports_neither_torchs_compiler_nor_other_heavy_packages() -> None:
    """Each of them takes a second and a hundred megabytes."""
    program = (
        "import sys; from pathlib import Path; from engine.config import EngineConfig; from engine.loading import load_core; "
        f"load_core(Path({str(models.smollm2())!r}), EngineConfig(device='cpu', max_model_len=64, kv_cache_memory=8 << 20)); "
        "print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in found
    assert not {"torch._dynamo", "torch._inductor", "sympy", "triton", "transformers", "scipy", "pandas"} & set(found)


def test_a_small_window_is_said_where_memory_and_not_the_person_made_it_small(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load_core(models.smollm2(), CONFIG)
        assert not [record for record in caplog.records if "The window has only" in record.getMessage()]
        info = load_core(models.smollm2(), EngineConfig(device="cpu", kv_cache_memory=8 << 20)).info
    (said,) = [record.getMessage() for record in caplog.records if "The window has only" in record.getMessage()]
    assert f"only {info.max_model_len} tokens" in said and info.memory_note in said


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is handed over on Windows")
def test_two_roles_of_one_model_meet_and_other_settings_do_not(memory: Path, tmp_path: Path) -> None:
    model = models.smollm2()

    def load(role: str, **knobs: Any) -> Any:
        folders = {"kv_shared_folder": str(memory), "kv_disk_folder": str(tmp_path / "disk")}
        loaded = load_core(model, structs.replace(CONFIG, role=role, swap_space=8 << 20, **folders, **knobs))
        return loaded.info.kv_kind, loaded.make_core(lambda events: None)._connector

    found = [load("prefill"), load("decode"), load("decode", block_size=32), load("both")]
    kinds, (prefill, decode, _, both) = [kind for kind, _ in found], [connector for _, connector in found]
    assert kinds[0] == kinds[1] == kinds[3] != kinds[2] and len(list(memory.glob("*/*/"))) == 2
    assert isinstance(prefill, SharedTier) and prefill.hands_over, "it keeps nothing on disk"
    assert isinstance(decode, Connectors) and isinstance(both, DiskTier)
    assert [type(part) for part in decode._parts] == [SharedTier, DiskTier] and not decode._parts[0].hands_over
    for _, connector in found:
        connector.close()
    assert list(memory.iterdir()) == []


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"swap_space": 0}, "swap_space is 0"),
        ({"enable_prefix_caching": False}, "prefix cache is off"),
        ({"swap_space": 100}, "no host memory is left"),
        ({"kv_shared_folder": "/proc/nowhere"}, "cannot be used"),
    ],
)
@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.skipif(sys.platform == "win32", reason="nothing is handed over on Windows")
def test_a_role_that_cannot_be_played_is_an_error_and_not_left_out(
    role: str, knobs: dict[str, Any], said: str, memory: Path
) -> None:
    folder = {"kv_shared_folder": str(memory)}
    with pytest.raises(ConfigError, match=said) as refused:
        load_core(models.smollm2(), structs.replace(CONFIG, role=role, **{**folder, **knobs}))
    assert refused.value.hint and list(memory.iterdir()) == []


def test_roles_are_refused_where_nothing_can_be_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    EngineConfig().validate()
    with pytest.raises(ConfigError, match="on Windows"):
        EngineConfig(role="decode").validate()


def test_limits_that_hold_no_block_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny.saved(tmp_path / "model", "llama")
    small = {"kv_cache_memory": 1 << 20, "swap_space": 1 << 20}
    loaded = ModelRunner(EngineConfig(**small), open_checkpoint(tmp_path / "model"))
    config = EngineConfig(kv_disk_folder=str(tmp_path / "kv"), kv_disk_space=1, **small)
    tier = loading._disk_tier("kind", config, loaded)
    tier.close()
    assert "1 bytes hold no block" in caplog.text and "--kv-disk-space" in caplog.text
    with tempfile.TemporaryDirectory(prefix="pw", dir="/tmp") as folder:  # a socket's path has to be short
        shared = EngineConfig(role="prefill", kv_shared_folder=folder, kv_shared_space=1, **small)
        for _ in range(2):  # the first one leaves no lock behind
            with pytest.raises(ConfigError) as refused:
                loading._shared_tier("a" * 64, shared, loaded)
            assert "--kv-shared-space" in refused.value.hint
