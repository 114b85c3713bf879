"""A Weight holds what it says it holds."""

from __future__ import annotations

import pytest
import torch

from kernels.conformance_weights import random_weight
from kernels.ops import NF4_VALUES, SCALED, Weight


def test_a_weight_knows_its_bytes() -> None:
    assert Weight("Q4_1", (3, 64), torch.zeros(3, 40, dtype=torch.uint8)).n_bytes == 120
    assert Weight("BF16", (3, 64), torch.zeros(3, 64, dtype=torch.bfloat16)).n_bytes == 384
    scales, zeros = torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.uint8)
    assert Weight("INT4", (3, 64), torch.zeros(3, 32, dtype=torch.uint8), scales, zeros).n_bytes == 96 + 24 + 6
    assert Weight("INT8", (3, 64), torch.zeros(3, 64, dtype=torch.int8), scales).n_bytes == 192 + 24


@pytest.mark.parametrize(
    ("qtype", "shape", "data"),
    [
        ("Q4_1", (3, 64), torch.zeros(3, 36, dtype=torch.uint8)),
        ("Q4_1", (3, 48), torch.zeros(3, 30, dtype=torch.uint8)),
        ("F16", (3, 64), torch.zeros(3, 64)),
        ("F32", (3, 64), torch.zeros(64, 3)),
        ("Q3_K", (3, 256), torch.zeros(3, 110, dtype=torch.uint8)),
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
        ({"scales": torch.ones(3, 4)}, "a multiple of 32"),
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
        ("INT8", torch.zeros(3, 3, dtype=torch.uint8), "has no zeros"),
        ("INT4", torch.zeros(3, 3), "needs torch.uint8 zeros"),
        ("INT4", torch.zeros(3, 1, dtype=torch.uint8), r"zeros of shape \(3, 3\)"),
    ],
)
def test_zeros_that_do_not_fit_are_refused(qtype: str, zeros: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=f"{qtype}.*{message}"):
        Weight(qtype, (3, 192), *_tensors(qtype, zeros=zeros))


def test_other_types_have_no_scales() -> None:
    with pytest.raises(ValueError, match="F32 weight has no scales"):
        Weight("F32", (3, 64), torch.zeros(3, 64), torch.ones(3, 1))


@pytest.mark.parametrize("zeros", [False, True])
def test_rows_are_picked_with_their_scales_and_zeros(zeros: bool) -> None:
    weight = random_weight("INT4", 5, 192, torch.Generator().manual_seed(1), 64, zeros=zeros)
    picked = weight.map(lambda tensor: tensor[1:4])
    assert (picked.shape, picked.group) == ((3, 192), 64)
    assert torch.equal(picked.data, weight.data[1:4])
    assert torch.equal(picked.scales, weight.scales[1:4])
    assert torch.equal(picked.zeros, weight.zeros[1:4]) if zeros else picked.zeros is None


def test_nf4_values_are_float32() -> None:
    assert torch.tensor(NF4_VALUES).double().tolist() == list(NF4_VALUES)
