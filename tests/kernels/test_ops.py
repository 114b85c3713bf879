"""A Weight holds what it says it holds."""

from __future__ import annotations

import pytest
import torch

from kernels.conformance_weights import random_weight
from kernels.ops import CODES, GROUP_UNIT, SCALED, Weight


def test_a_weight_knows_its_bytes() -> None:
    assert Weight("Q4_1", (3, 64), torch.zeros(3, 40, dtype=torch.uint8)).n_bytes == 120
    assert Weight("BF16", (3, 64), torch.zeros(3, 64, dtype=torch.bfloat16)).n_bytes == 384
    scales, zeros = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.uint8)
    assert Weight("INT4", (3, 64), torch.zeros(3, 32, dtype=torch.uint8), scales, zeros).n_bytes == 96 + 24 + 6
    assert Weight("INT8", (3, 64), torch.zeros(3, 64, dtype=torch.int8), scales).n_bytes == 192 + 24
    order = torch.zeros(64, dtype=torch.int32)
    assert Weight("INT8", (3, 64), torch.zeros(3, 64, dtype=torch.int8), scales, zeros.short(), order).n_bytes == 216 + 12 + 256


@pytest.mark.parametrize(
    ("qtype", "shape", "data"),
    [
        ("Q4_1", (3, 64), torch.zeros(3, 36, dtype=torch.uint8)),
        ("Q4_1", (3, 48), torch.zeros(3, 30, dtype=torch.uint8)),
        ("F16", (3, 64), torch.zeros(3, 64)),
        ("F32", (3, 64), torch.zeros(64, 3)),
        ("Q8_K", (3, 256), torch.zeros(3, 292, dtype=torch.uint8)),
    ],
)
def test_data_that_does_not_fit_is_refused(qtype: str, shape: tuple[int, int], data: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=qtype):
        Weight(qtype, shape, data)


def _tensors(qtype: str, **changed: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """data, scales and zeros of a weight of shape (3, 192) in groups of 64, but for what is changed."""
    dtype, n_values = SCALED[qtype]
    made = {"data": torch.zeros(3, 192 // n_values, dtype=torch.uint8).view(dtype), "scales": torch.ones(3, 3), "zeros": None}
    return tuple((made | changed).values())


@pytest.mark.parametrize("qtype", SCALED)
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data": torch.zeros(3, 64)}, "needs torch.* data of shape"),
        ({"scales": None}, "needs scales"),
        ({"scales": torch.ones(3)}, "a group that divides in"),
        ({"scales": torch.ones(3, 0)}, "a group that divides in"),
        ({"scales": torch.ones(3, 5)}, "a group that divides in"),
        ({"scales": torch.ones(3, 8)}, "a multiple of"),
        ({"scales": torch.ones(2, 3)}, r"scales of shape \(3, 3\)"),
        ({"scales": torch.ones(3, 3).half()}, "needs torch.float32 scales"),
    ],
)
def test_scales_that_do_not_fit_are_refused(qtype: str, changed: dict[str, torch.Tensor | None], message: str) -> None:
    with pytest.raises(ValueError, match=f"{qtype}.*{message}"):
        Weight(qtype, (3, 192), *_tensors(qtype, **changed))


@pytest.mark.parametrize(
    ("qtype", "zeros", "message"),
    [
        ("FP8", torch.zeros(3, 3, dtype=torch.uint8), "has no zeros"),
        ("E2M1", torch.zeros(3, 3, dtype=torch.uint8), "has no zeros"),
        ("INT8", torch.zeros(3, 3, dtype=torch.uint8), "needs torch.int16 zeros"),
        ("INT4", torch.zeros(3, 3), "needs torch.uint8 zeros"),
        ("INT4", torch.zeros(3, 1, dtype=torch.uint8), r"zeros of shape \(3, 3\)"),
    ],
)
def test_zeros_that_do_not_fit_are_refused(qtype: str, zeros: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"{qtype}.*{message}"):
        Weight(qtype, (3, 192), *_tensors(qtype, zeros=zeros))


@pytest.mark.parametrize("qtype", SCALED)
@pytest.mark.parametrize("order", [torch.arange(192), torch.arange(191, dtype=torch.int32)])
def test_an_order_that_does_not_fit_is_refused(qtype: str, order: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=rf"{qtype}.*needs torch.int32 order of shape \(192,\)"):
        Weight(qtype, (3, 192), *_tensors(qtype), order)


def test_groups_are_of_the_unit_of_their_type() -> None:
    for qtype, unit in GROUP_UNIT.items():
        for n_groups in (12, 6):
            tensors = _tensors(qtype, scales=torch.ones(3, n_groups))
            if unit <= 192 // n_groups:
                assert Weight(qtype, (3, 192), *tensors).group == 192 // n_groups
            else:
                with pytest.raises(ValueError, match=f"{qtype}.*a multiple of {unit}"):
                    Weight(qtype, (3, 192), *tensors)


@pytest.mark.parametrize("qtype", SCALED)
def test_rows_are_whole_blocks_of_what_products_work_on(qtype: str) -> None:
    dtype, n_values = SCALED[qtype]
    data = torch.zeros(3, 48 // n_values, dtype=torch.uint8).view(dtype)
    with pytest.raises(ValueError, match=f"{qtype} row has a multiple of 32 values"):
        Weight(qtype, (3, 48), data, torch.ones(3, 1))


def test_other_types_have_no_scales() -> None:
    for apart in ((torch.ones(3, 1),), (None, None, torch.arange(64, dtype=torch.int32))):
        with pytest.raises(ValueError, match="F32 weight has no scales, zeros or order"):
            Weight("F32", (3, 64), torch.zeros(3, 64), *apart)


@pytest.mark.parametrize("zeros", [False, True])
def test_rows_are_picked_with_their_scales_and_zeros(zeros: bool) -> None:
    """And in the order of the weight."""
    weight = random_weight("INT4", 5, 192, torch.Generator().manual_seed(1), 64, zeros=zeros, order=True)
    picked = weight.map(lambda tensor: tensor[1:4])
    assert (picked.shape, picked.group) == ((3, 192), 64)
    assert torch.equal(picked.data, weight.data[1:4])
    assert torch.equal(picked.scales, weight.scales[1:4])
    assert torch.equal(picked.zeros, weight.zeros[1:4]) if zeros else picked.zeros is None
    assert picked.order is weight.order


@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
def test_codes_are_sixteen_float32(codes: tuple[float, ...]) -> None:
    assert len(codes) == 16
    assert torch.tensor(codes).double().tolist() == list(codes)
