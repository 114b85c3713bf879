"""What a load says, and what it leaves behind in memory."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from engine import loading
from engine.config import EngineConfig
from engine.loading import load_core
from kernels.cpu import launch
from tests import models
from tests.engine.weights.test_pages import resident_bytes

ROOT = Path(__file__).parents[2]
CONFIG = EngineConfig(device="cpu", max_model_len=64, kv_cache_memory=8 << 20)


def test_a_start_without_native_operators_says_so_once_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launch, "missing", "no compiler was found")
    loading._warn_of_plain_torch.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            load_core(models.smollm2(), CONFIG)
    (said,) = [record.getMessage() for record in caplog.records if "fast CPU operators" in record.getMessage()]
    assert "no compiler was found" in said and "make native" in said


def test_with_native_operators_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    if launch.missing is not None:
        pytest.skip(launch.missing)
    with caplog.at_level(logging.WARNING):
        info = load_core(models.smollm2(), CONFIG).info
    assert not [record for record in caplog.records if "operators" in record.getMessage()]
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
