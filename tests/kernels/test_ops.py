"""A Weight holds what it says it holds."""

from __future__ import annotations

import pytest
import torch

from kernels.ops import Weight


def test_a_weight_knows_its_bytes() -> None:
    assert Weight("Q4_1", (3, 64), torch.zeros(3, 40, dtype=torch.uint8)).n_bytes == 120
    assert Weight("BF16", (3, 64), torch.zeros(3, 64, dtype=torch.bfloat16)).n_bytes == 384


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
