"""Native operators take arguments that do not lie in memory as they read them, or say that they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import cpu
from kernels.conformance import Case, cases
from kernels.cpu.launch import missing
from kernels.ops import Impl, Weight

pytestmark = pytest.mark.skipif(missing is not None, reason=f"{missing}")

IN_PLACE = {"penalize": (0,), "copy_blocks": (0, 1, 3), "causal_conv": (3,), "delta_rule": (7,), "state_scan": (7,)}
"""Arguments that must lie as they do, since they are edited where they are."""
FAR = "2^31"
"""In the name of cases that are too large for copies."""


def with_gaps(value: Any) -> Any:
    """Equal values with something else between any two of them."""
    if isinstance(value, tuple):
        changed = {id(item): with_gaps(item) for item in value}  # scales of latent keys are those of their values too
        return tuple(changed[id(item)] for item in value)
    if isinstance(value, Weight):
        return value.map(with_gaps)
    if not isinstance(value, Tensor):
        return value
    if value.dtype == torch.float8_e4m3fn:
        return with_gaps(value.view(torch.uint8)).view(value.dtype)
    filler = torch.nan if value.is_floating_point() else 0
    wide = torch.full((*value.shape, 2), filler, dtype=value.dtype)
    wide[..., 0] = value
    return wide[..., 0]


def _packed(impl: Impl, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_packed(impl, item) for item in value)
    return impl.pack(value) if isinstance(value, Weight) else value


def _result(impl: Impl, case: Case, *, gaps: bool) -> tuple[Tensor, ...]:
    args = case.make()
    if gaps:
        args = tuple(arg if i in IN_PLACE.get(impl.op, ()) else with_gaps(arg) for i, arg in enumerate(args))
    return case.outputs(args, impl.fn(*(_packed(impl, arg) for arg in args)))


@pytest.mark.parametrize("impl", [pytest.param(impl, id=f"{impl.op}-{impl.source}") for impl in cpu.IMPLS])
def test_gaps_between_the_values_of_any_argument_do_not_change_a_bit(impl: Impl) -> None:
    for spec in dict.fromkeys((impl.specs[0], impl.specs[-1])):
        for case in cases(impl.op, spec):
            if FAR in case.name:
                continue
            for got, wanted in zip(_result(impl, case, gaps=True), _result(impl, case, gaps=False), strict=True):
                assert torch.equal(got.isnan(), wanted.isnan()), f"{spec}, {case.name}"
                assert torch.equal(got.nan_to_num(), wanted.nan_to_num()), f"{spec}, {case.name}"


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_single_vector_with_gaps_is_normed(size: int) -> None:
    x, weight = torch.randn(2, size, generator=torch.Generator().manual_seed(1)).unbind()
    assert torch.equal(cpu.rows.rms_norm(with_gaps(x), weight, 1e-5), cpu.rows.rms_norm(x, weight, 1e-5))


def test_logits_with_gaps_cannot_be_edited_in_place() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(ValueError, match="2 values apart"):
        cpu.sample.penalize(with_gaps(torch.zeros(5)), none, 1.0, none, none.double(), 0.0, 0.0)


def test_query_heads_that_cannot_be_shared_out_are_refused() -> None:
    impl = cpu.attention.IMPLS[0]
    q, *rest = next(cases("paged_attention", replace(impl.specs[0], head_size=16))).make()
    with pytest.raises(ValueError, match="2 KV heads cannot have equal shares of 5"):
        cpu.attention.paged_attention(q[:, :5], *rest)
