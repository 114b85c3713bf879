"""Dequantised values equal the gguf package's, bit for bit, on random blocks and on real files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from engine.weights.gguf.file import GGUFFile
from kernels.conformance_weights import random_weight
from kernels.ops import BLOCKS, DENSE, NF4_VALUES, SCALED, Weight
from kernels.reference.dequant import dense, dequantize
from tests import models
from tests.kernels import naive


def _assert_same_bits(qtype: str, raw: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[qtype])
    values = dequantize(qtype, torch.from_numpy(raw)).numpy()
    assert values.shape == expected.shape
    same = (values.view(np.int32) == expected.view(np.int32)) | (np.isnan(values) & np.isnan(expected))
    assert same.all(), f"{(~same).sum()} of {same.size} values differ"


@pytest.mark.parametrize("qtype", BLOCKS)
def test_random_blocks_have_the_same_bits(qtype: str) -> None:
    raw = np.random.default_rng(8).integers(0, 256, (200, BLOCKS[qtype][1] * 6), dtype=np.uint8)
    _assert_same_bits(qtype, raw)


@pytest.mark.parametrize("qtype", BLOCKS)
@pytest.mark.parametrize("n_blocks", [0, 1, 2])
def test_few_blocks_and_any_number_of_dims(qtype: str, n_blocks: int) -> None:
    raw = torch.randint(0, 60, (2, 3, n_blocks * BLOCKS[qtype][1]), dtype=torch.uint8)
    values = dequantize(qtype, raw)
    assert values.shape == (2, 3, n_blocks * BLOCKS[qtype][0])
    if n_blocks:
        assert torch.equal(values[1, 2, : BLOCKS[qtype][0]], dequantize(qtype, raw[1, 2, : BLOCKS[qtype][1]]))


@pytest.mark.parametrize("qtype", BLOCKS)
@pytest.mark.parametrize("offset", [1, 2, 3, 4, 6])
def test_blocks_at_odd_places_in_memory(qtype: str, offset: int) -> None:
    raw = torch.randint(0, 60, (offset + 5 * BLOCKS[qtype][1],), dtype=torch.uint8)
    shifted = raw[offset:].view(5, -1)
    assert torch.equal(dequantize(qtype, shifted), dequantize(qtype, shifted.clone()))


def test_values_go_into_a_given_buffer() -> None:
    raw, out = torch.randint(0, 60, (4, 40), dtype=torch.uint8), torch.full((4, 64), torch.nan)
    assert dequantize("Q4_1", raw, out) is out
    assert torch.equal(out, dequantize("Q4_1", raw))


def test_wrong_arguments_are_refused() -> None:
    rows = torch.zeros(2, 40, dtype=torch.uint8)
    with pytest.raises(ValueError, match="IQ4_XS is not a block format"):
        dequantize("IQ4_XS", rows)
    with pytest.raises(ValueError, match="whole blocks of 18 bytes"):
        dequantize("Q4_0", rows)
    with pytest.raises(ValueError, match="uint8"):
        dequantize("Q4_1", rows.float())
    with pytest.raises(ValueError, match="out"):
        dequantize("Q4_1", rows, torch.empty(2, 32))


@pytest.mark.parametrize("qtype", SCALED)
@pytest.mark.parametrize("group", [32, 64, 96, 192, 576])
@pytest.mark.parametrize("zeros", [False, True])
def test_values_with_scales_of_their_own_have_the_same_bits(qtype: str, group: int, zeros: bool) -> None:
    weight = random_weight(qtype, 9, 576, torch.Generator().manual_seed(group), group, zeros=zeros)
    assert torch.equal(dense(weight).double(), naive.dense(weight))


def test_values_written_out_by_hand() -> None:
    halves = torch.tensor([[0x80, 0x3F] + [0x88] * 14 + [0x21] * 16], dtype=torch.uint8)
    scales = torch.tensor([[2.0, -0.5]])
    int4 = dense(Weight("INT4", (1, 64), halves, scales))
    assert int4[0, :5].tolist() == [-16, 0, 14, -10, 0] and int4[0, 32:34].tolist() == [3.5, 3]
    int4 = dense(Weight("INT4", (1, 64), halves, scales, torch.tensor([[0, 16]], dtype=torch.uint8)))
    assert int4[0, :5].tolist() == [0, 16, 30, 6, 16] and int4[0, 32:34].tolist() == [7.5, 7]
    nf4 = dense(Weight("NF4", (1, 64), halves, scales))
    assert nf4[0, 2:4].tolist() == [2 * NF4_VALUES[15], 2 * NF4_VALUES[3]] and nf4[0, 32] == -0.5 * NF4_VALUES[1]
    bits = torch.tensor([0x00, 0x01, 0x07, 0x08, 0x38, 0x7E, 0x81, 0xFE] * 4, dtype=torch.uint8)[None]
    fp8 = dense(Weight("FP8", (1, 32), bits.view(torch.float8_e4m3fn), torch.tensor([[2.0]])))
    assert fp8[0, :8].tolist() == [0, 2**-8, 7 * 2**-8, 2**-5, 2, 896, -(2**-8), -896]
    int8 = dense(Weight("INT8", (1, 32), torch.arange(-128, 128, 8, dtype=torch.int8)[None], torch.tensor([[0.5]])))
    assert int8[0].tolist() == list(range(-64, 64, 4))


@pytest.mark.parametrize("qtype", [*DENSE, *BLOCKS, *SCALED])
def test_any_weight_goes_into_a_given_buffer(qtype: str) -> None:
    weight, out = random_weight(qtype, 3, 512, torch.Generator().manual_seed(1)), torch.full((3, 512), torch.nan)
    assert dense(weight, out) is out
    assert torch.equal(out.double(), naive.dense(weight))


def _check_real_file(path: Path) -> None:
    file = GGUFFile(path)
    for tensor in file.tensors.values():
        if tensor.qtype in BLOCKS:
            rows = file.data(tensor.name)
            _assert_same_bits(tensor.qtype, rows[:: max(1, len(rows) // 16)].numpy().copy())


def test_rows_of_every_tensor_of_the_default_model() -> None:
    _check_real_file(models.smollm2())


@pytest.mark.models
@pytest.mark.parametrize("model", [models.gemma, models.qwen_05b, models.qwen_15b])
def test_rows_of_every_tensor_of_larger_models(model: Callable[[], Path]) -> None:
    _check_real_file(model())
