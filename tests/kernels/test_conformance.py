"""Every registered kernel meets the contract, the reference included, and the conformance suite notices one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from kernels.conformance import cases, check
from kernels.cpu.launch import native
from kernels.ops import OPERATORS, Impl, OpSpec
from kernels.reference import IMPLS
from kernels.registry import implementations
from tests.kernels import naive

EVERY_IMPL = [impl for op in OPERATORS for impl in implementations(op)]
CPU_F32 = OpSpec(dtype=torch.float32, kv_dtype=torch.float32, head_size=64)


@pytest.fixture
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    """The instruction-set level that the parameter names, if any."""
    if request.param is None:
        yield
        return
    before = native.level()
    native.set_level(request.param)
    yield
    native.set_level(before)


@pytest.mark.parametrize(
    ("impl", "level"),
    [
        pytest.param(impl, level, id="-".join(filter(None, (impl.op, impl.source, level))))
        for impl in EVERY_IMPL
        for level in (native.levels() if impl.source.startswith("cpp") and native else [None])
    ],
    indirect=["level"],
)
@pytest.mark.usefixtures("level")
def test_kernel_agrees_with_its_oracle_on_its_declared_specs(impl: Impl) -> None:
    """The reference with formulas written a second time, every other kernel with the reference."""
    assert impl.specs
    assert check(impl, naive.OPERATORS[impl.op] if impl.source == "reference" else None) == []


def test_the_reference_is_never_compared_with_itself() -> None:
    with pytest.raises(ValueError, match="own oracle"):
        check(_reference("silu_mul"))


@pytest.mark.parametrize("op", OPERATORS)
def test_every_operator_has_a_reference(op: str) -> None:
    assert implementations(op)[-1].source == "reference"


def _reference(op: str) -> Impl:
    return next(impl for impl in IMPLS if impl.op == op)


def test_an_attention_that_forgets_the_window_is_noticed() -> None:
    honest = _reference("paged_attention")
    forgetful = replace(honest, fn=lambda *args: honest.fn(*args[:7], 0, args[8]), specs=(replace(CPU_F32, window=True),))
    assert any("chunks beside decodes" in failure for failure in check(forgetful))


def test_an_attention_that_reads_past_the_context_is_noticed() -> None:
    honest = _reference("paged_attention")

    def greedy(q, k_cache, v_cache, starts, contexts, *rest):
        shifted = torch.where((contexts > 0) & (contexts % 16 > 0), contexts + 1, contexts)
        return honest.fn(q, k_cache, v_cache, starts, shifted, *rest)

    assert any("NaN" in failure for failure in check(replace(honest, fn=greedy, specs=(CPU_F32,))))


def test_a_reference_that_is_wrong_is_noticed() -> None:
    honest = _reference("rms_norm")
    wrong = replace(honest, fn=lambda x, weight, eps: honest.fn(x, weight, eps * 100))
    assert check(wrong, naive.rms_norm) != []


def test_an_attention_whose_offsets_wrap_at_2_to_the_31_is_noticed() -> None:
    honest = _reference("paged_attention")

    def wrapping(q, k_cache, v_cache, starts, contexts, tables, *rest):
        n_reachable = 2**31 // k_cache[0].numel()
        return honest.fn(q, k_cache, v_cache, starts, contexts, tables % n_reachable, *rest)

    failures = check(replace(honest, fn=wrapping, specs=(replace(CPU_F32, kv_dtype=torch.float16),)), naive.paged_attention)
    assert failures and all("offsets above 2^31" in failure for failure in failures)


def test_a_copy_that_serves_each_source_once_is_noticed() -> None:
    honest = _reference("copy_blocks")

    def once(k_cache, v_cache, pairs):
        honest.fn(k_cache, v_cache, list(dict(pairs).items()))

    assert any("(3, 1), (4, 2), (3, 0)" in failure for failure in check(replace(honest, fn=once, specs=(CPU_F32,))))


def test_a_write_at_a_padding_slot_is_noticed() -> None:
    honest = _reference("rope_and_write_kv")
    careless = replace(honest, fn=lambda *args: honest.fn(*args[:8], args[8].clamp(min=0)), specs=(CPU_F32,))
    assert check(careless) != []


def test_a_declared_spec_that_is_not_supported_is_noticed() -> None:
    refusing = replace(_reference("silu_mul"), supports=lambda spec: "not today")
    failures = check(refusing, naive.silu_mul)
    assert failures and all("not today" in failure for failure in failures)


def test_cases_are_the_same_each_time() -> None:
    for case in cases("paged_attention", CPU_F32):
        for a, b in zip(case.make(), case.make(), strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num()) if isinstance(a, torch.Tensor) else a == b
