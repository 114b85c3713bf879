"""The registry picks the fastest implementation that says it can, and names what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels import registry
from kernels.ops import Impl, OpSpec
from kernels.registry import KernelMissing, implementations, register, report, resolve, resolved


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_impls", {op: list(impls) for op, impls in registry._impls.items()})
    monkeypatch.setattr(registry, "_resolved", {})


def _fast(source: str, reason: str | None) -> Impl:
    return Impl("silu_mul", source, lambda gate, up: gate, lambda spec: reason, (OpSpec(dtype=torch.float32),))


def test_the_fastest_supporting_source_wins() -> None:
    spec = OpSpec(dtype=torch.float32)
    registry._impls["silu_mul"] = [impl for impl in implementations("silu_mul") if impl.source == "reference"]
    assert resolve("silu_mul", replace(spec, dtype=torch.float16)).source == "reference"
    register(_fast("cpp", None), _fast("triton", "needs a GPU"))
    assert [impl.source for impl in implementations("silu_mul")] == ["triton", "cpp", "reference"]
    assert resolve("silu_mul", spec).source == "cpp"


def test_the_report_says_why_a_faster_one_was_not_taken() -> None:
    register(_fast("triton", "needs a GPU"))
    resolve("silu_mul", OpSpec(dtype=torch.bfloat16))
    resolve("quant_linear", OpSpec(dtype=torch.bfloat16, qtype="Q4_K"))
    assert [resolution.op for resolution in resolved()] == ["quant_linear", "silu_mul"]
    lines = report()
    assert "cpu, bfloat16, Q4_K" in lines[0] and "reference" in lines[0]
    assert "triton: needs a GPU" in lines[1]


def test_a_missing_kernel_is_named_with_its_spec() -> None:
    spec = OpSpec("cuda", torch.float32, torch.float8_e5m2, head_size=96, window=True, soft_cap=True)
    with pytest.raises(KernelMissing) as raised:
        resolve("paged_attention", spec)
    assert "paged_attention (cuda, float32, kv float8_e5m2, head 96, window, soft cap)" in str(raised.value)
    assert "reference: KV cache of torch.float8_e5m2" in raised.value.hint


def test_a_weight_type_nobody_knows_is_missing() -> None:
    with pytest.raises(KernelMissing, match="Q8_K"):
        resolve("quant_linear", OpSpec(dtype=torch.float32, qtype="Q8_K"))


def test_unknown_operators_and_doubled_sources_are_refused() -> None:
    with pytest.raises(ValueError, match="not an operator"):
        resolve("conv2d", OpSpec())
    with pytest.raises(ValueError, match="already has"):
        register(_fast("reference", None))
    with pytest.raises(ValueError, match="not an operator"):
        register(replace(_fast("cpp", None), op="conv2d"))
