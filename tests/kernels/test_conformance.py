"""Every registered kernel meets the contract, the reference included, and the conformance suite notices one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from kernels.conformance import cases, check
from kernels.conformance_difference import difference
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
    forgetful = replace(honest, fn=lambda *args: honest.fn(*args[:7], 0, *args[8:]), specs=(replace(CPU_F32, window=True),))
    assert any("chunks beside decodes" in failure for failure in check(forgetful))


def test_an_attention_that_takes_a_chunk_for_a_window_is_noticed() -> None:
    honest, spec = _reference("paged_attention"), replace(CPU_F32, window=True, chunked=True)
    sliding = replace(honest, fn=lambda *args: honest.fn(*args[:-1], False), specs=(spec,))
    assert any("at borders of chunks" in failure for failure in check(sliding))


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

    assert _only_far(check(replace(honest, fn=wrapping, specs=(FAR,)), naive.paged_attention))


FAR = replace(CPU_F32, kv_dtype=torch.float16)


def _only_far(failures: list[str]) -> bool:
    return bool(failures) and all("offsets above 2^31" in failure for failure in failures)


def test_slots_that_wrap_at_2_to_the_31_are_noticed() -> None:
    honest = _reference("rope_and_write_kv")

    def wrapping(*args):
        n_reachable = 2**31 // args[6][0].numel() * args[6].shape[1]
        return honest.fn(*args[:8], torch.where(args[8] < 0, -1, args[8] % n_reachable), *args[9:])

    assert _only_far(check(replace(honest, fn=wrapping, specs=(FAR,)), naive.rope_and_write_kv))


def test_copies_that_wrap_at_2_to_the_31_are_noticed() -> None:
    honest = _reference("copy_blocks")

    def wrapping(k_cache, v_cache, pairs, scales):
        n_reachable = 2**31 // k_cache[0].numel()
        honest.fn(k_cache, v_cache, [(source % n_reachable, to % n_reachable) for source, to in pairs], scales)

    assert _only_far(check(replace(honest, fn=wrapping, specs=(FAR,)), naive.copy_blocks))


def test_infinities_hide_no_other_difference() -> None:
    inf, nan = torch.inf, torch.nan
    want = torch.tensor([inf, -inf, nan, 1.0, 1e-3])
    assert difference(want.clone(), want) is None
    assert "error" in difference(torch.tensor([inf, -inf, nan, 1.1, 1e-3]), want)
    assert "1 wrong places" in difference(torch.tensor([inf, inf, nan, 1.0, 1e-3]), want)
    assert "1 wrong places" in difference(torch.tensor([inf, -inf, nan, inf, 1e-3]), want)
    assert "1 wrong places" in difference(torch.tensor([3e38, -inf, nan, 1.0, 1e-3]), want)
    assert "NaN" in difference(torch.tensor([inf, -inf, 0.0, 1.0, 1e-3]), want)


def test_a_copy_that_serves_each_source_once_is_noticed() -> None:
    honest = _reference("copy_blocks")

    def once(k_cache, v_cache, pairs, scales):
        honest.fn(k_cache, v_cache, list(dict(pairs).items()))

    assert any("(3, 1), (4, 2), (3, 0)" in failure for failure in check(replace(honest, fn=once, specs=(CPU_F32,))))


INT8 = replace(CPU_F32, kv_dtype=torch.int8)


def test_scales_that_are_not_copied_are_noticed() -> None:
    honest = _reference("copy_blocks")
    careless = replace(honest, fn=lambda k_cache, v_cache, pairs, scales: honest.fn(k_cache, v_cache, pairs), specs=(INT8,))
    assert any("output 2" in failure for failure in check(careless, naive.copy_blocks))


def test_int8_that_is_cut_off_instead_of_rounded_is_noticed() -> None:
    honest = _reference("rope_and_write_kv")

    def cutting(q, k, v, *rest):
        k_cache, v_cache, slots, (_, scales) = rest[3:]
        out = honest.fn(q, k, v, *rest)
        if v is None or v_cache is None:
            return out
        block, offset = slots[slots >= 0] // v_cache.shape[1], slots[slots >= 0] % v_cache.shape[1]
        steps = v[slots >= 0] / scales[block, offset].unsqueeze(-1)
        v_cache[block, offset] = steps.nan_to_num().to(torch.int8)
        return out

    failures = check(replace(honest, fn=cutting, specs=(INT8,)), naive.rope_and_write_kv)
    assert failures and all("output 2" in failure and "by up to 1" in failure for failure in failures)


def test_e4m3_that_is_not_rounded_to_even_or_becomes_nan_is_noticed() -> None:
    honest = _reference("rope_and_write_kv")
    e4m3 = replace(CPU_F32, kv_dtype=torch.float8_e4m3fn)

    def changed(change, args):
        k_cache, v_cache, slots = args[6:9]
        out = honest.fn(*args)
        if args[2] is None or v_cache is None:
            return out
        v_cache[slots[slots >= 0] // v_cache.shape[1], slots[slots >= 0] % v_cache.shape[1]] = change(args[2][slots >= 0])
        return out

    def cut(v):
        return (v.clamp(-448, 448).view(torch.int32) & ~0xFFFFF).view(torch.float32).to(torch.float8_e4m3fn)

    def beyond(v):
        return torch.where(v.abs() > 448, torch.nan, v).to(torch.float8_e4m3fn)

    for change, what in ((cut, "values are off"), (beyond, "NaN in")):
        careless = replace(honest, fn=lambda *args, change=change: changed(change, args), specs=(e4m3,))
        failures = check(careless, naive.rope_and_write_kv)
        assert failures and all("output 2" in failure and what in failure for failure in failures)


def test_neighbours_in_e4m3_are_one_apart() -> None:
    bits = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    want = bits.repeat(1000)
    for away in (1, 2):
        got = want.view(torch.uint8).clone()
        got[0] = 128  # minus zero
        got[5] += away
        got[133] += away  # of the other sign
        found = difference(got.view(torch.float8_e4m3fn), want)
        assert (found is None) if away == 1 else "by up to 2" in found
    got[127] = 0
    assert "NaN" in difference(got.view(torch.float8_e4m3fn), want)


@pytest.mark.parametrize("forgotten", [0, 1])
def test_an_attention_that_takes_the_scales_of_others_is_noticed(forgotten: int) -> None:
    honest = _reference("paged_attention")

    def careless(*args):
        scales = [scale.clone() for scale in args[9]]
        scales[forgotten][:, ::2] = scales[forgotten][:, 1::2]
        return honest.fn(*args[:9], tuple(scales), *args[10:])

    assert check(replace(honest, fn=careless, specs=(INT8,)), naive.paged_attention) != []


def test_a_write_at_a_padding_slot_is_noticed() -> None:
    honest = _reference("rope_and_write_kv")
    careless = replace(honest, fn=lambda *args: honest.fn(*args[:8], args[8].clamp(min=0), *args[9:]), specs=(CPU_F32,))
    assert check(careless) != []


def test_a_declared_spec_that_is_not_supported_is_noticed() -> None:
    refusing = replace(_reference("silu_mul"), supports=lambda spec: "not today")
    failures = check(refusing, naive.silu_mul)
    assert failures and all("not today" in failure for failure in failures)


def test_cases_are_the_same_each_time() -> None:
    for case in cases("paged_attention", CPU_F32):
        for a, b in zip(case.make(), case.make(), strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num()) if isinstance(a, torch.Tensor) else a == b
