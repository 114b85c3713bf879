"""What native operators are given, they take for what the contract says: anything else is refused by name, not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.conformance import _packed, cases
from kernels.conformance_weights import random_weight
from kernels.cpu import cache, linear, rows
from kernels.cpu.launch import missing
from kernels.ops import OPERATORS, Impl
from kernels.registry import implementations

pytestmark = pytest.mark.skipif(missing is not None, reason=f"{missing}")

NATIVE = [impl for op in OPERATORS for impl in implementations(op) if impl.source == "cpp"]
OTHER = {torch.int64: torch.int32, torch.int32: torch.int64}


def places(args: tuple[Any, ...]) -> Iterator[tuple[int, ...]]:
    """Where the tensors of a call are."""
    for i, arg in enumerate(args):
        if isinstance(arg, Tensor):
            yield (i,)
        elif isinstance(arg, tuple):
            yield from ((i, *place) for place in places(arg))


def at(args: Any, place: tuple[int, ...]) -> Tensor:
    return at(args[place[0]], place[1:]) if place else args


def put(args: tuple[Any, ...], place: tuple[int, ...], tensor: Tensor) -> tuple[Any, ...]:
    changed = put(args[place[0]], place[1:], tensor) if len(place) > 1 else tensor
    return (*args[: place[0]], changed, *args[place[0] + 1 :])


@pytest.mark.parametrize("impl", NATIVE, ids=lambda impl: impl.op)
def test_a_tensor_of_another_dtype_is_refused(impl: Impl) -> None:
    if impl.op == "copy_blocks":
        pytest.skip("copies bytes, whatever they mean")
    tried = 0
    for case in cases(impl.op, impl.specs[0]):
        args = _packed(case.make(), impl.pack) if impl.pack else case.make()
        for place in places(args):
            tensor = at(args, place)
            narrow = torch.float64 if impl.op == "heads_linear" and place == (1,) else torch.float16  # it takes weights of these
            wrong = put(args, place, tensor.to(OTHER.get(tensor.dtype, narrow)))
            with pytest.raises(ValueError, match=r"is of torch\.\w+, not of torch\.\w+"):
                impl.fn(*wrong)
            tried += 1
    assert tried > 2


def test_tensors_whose_shapes_do_not_go_together_are_refused() -> None:
    x, weight = torch.randn(3, 64), torch.ones(64)
    packed = linear.pack(random_weight("Q4_0", 16, 64, torch.Generator()))
    q, k = torch.randn(3, 4, 16), torch.randn(3, 2, 16)
    planes = torch.zeros(5, 16, 2, 16), torch.zeros(5, 16, 2, 16)
    angles, ids = torch.zeros(9, 8), torch.arange(3)
    for call in (
        lambda: rows.rms_norm(x, weight[:63], 1e-5),
        lambda: rows.rms_norm_add(x, x[:2], weight, 1e-5),
        lambda: rows.rms_norm_add(x, x, weight[:63], 1e-5),
        lambda: rows.silu_mul(x, x[:, :1]),
        lambda: rows.silu_mul(x, x[:2]),
        lambda: linear.quant_linear(x, packed, torch.zeros(15)),
        lambda: linear.gated_linear(x, packed, packed, (None, torch.zeros(17)), "silu"),
        lambda: cache.rope_and_write_kv(q, k[:, :1], k, ids, angles, angles, *planes, ids),
        lambda: cache.rope_and_write_kv(q, k, k, ids[:2], angles, angles, *planes, ids),
        lambda: cache.rope_and_write_kv(q, k, k, ids, angles, angles[:, :7], *planes, ids),
        lambda: cache.rope_and_write_kv(q, k, k, ids, angles, angles, planes[0], planes[1][:4], ids),
    ):
        with pytest.raises(ValueError, match="is of shape"):
            call()
    with pytest.raises(ValueError, match="18 dims cannot be rotated in heads of 16"):
        cache.rope_and_write_kv(q, k, k, ids, torch.zeros(9, 9), torch.zeros(9, 9), *planes, ids)
    with pytest.raises(ValueError, match="goes with scales|goes without scales"):
        cache.rope_and_write_kv(q, k, k, ids, angles, angles, *planes, ids, (planes[0][..., 0], planes[1][..., 0]))


def test_rows_that_a_weight_does_not_have_are_nan() -> None:
    weight = linear.pack(random_weight("Q4_0", 29, 64, torch.Generator()))
    found = linear.embedding(torch.tensor([28, -1, 29, 1 << 40]), weight, torch.float32)
    assert found.isnan().all(1).tolist() == [False, True, True, True]
