"""What the reference does beyond the contract, to which test_conformance.py holds it: tiles, exact bits, rounding."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from kernels import reference
from kernels.conformance import BATCHES, attention_arguments
from kernels.conformance_weights import random_weight
from kernels.ops import QTYPES, OpSpec
from kernels.reference import attention, linear
from tests.kernels import naive

F32 = OpSpec(dtype=torch.float32, kv_dtype=torch.float32, head_size=64)


def test_attention_equals_torch_on_a_whole_prompt() -> None:
    args = attention_arguments(F32, ((50, 50),), torch.Generator().manual_seed(4))
    q, k_cache, v_cache, *_ = args
    table = args[5][0, :4].long()
    k, v = (cache[table].flatten(0, 1)[:50].transpose(0, 1) for cache in (k_cache, v_cache))
    expected = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True, enable_gqa=True).transpose(0, 1)
    torch.testing.assert_close(reference.paged_attention(*args), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("window", "chunked"), [(False, False), (True, False), (True, True)])
def test_attention_in_tiles_of_query_rows_equals_attention_at_once(
    window: bool, chunked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = OpSpec(dtype=torch.float32, kv_dtype=torch.float32, head_size=64, window=window, chunked=chunked)
    args = attention_arguments(spec, BATCHES["chunks beside decodes"], torch.Generator().manual_seed(5))
    at_once = reference.paged_attention(*args)
    monkeypatch.setattr(attention, "_MOST_SCORES", 1000)
    torch.testing.assert_close(reference.paged_attention(*args), at_once, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("qtype", QTYPES)
def test_linear_in_tiles_that_do_not_divide_the_rows_evenly(qtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_TILE_VALUES", 1000)
    g = torch.Generator().manual_seed(6)
    weight, x, bias = random_weight(qtype, 11, 512, g), torch.randn(5, 512, generator=g), torch.randn(11, generator=g)
    expected = naive.quant_linear(x, weight, bias)
    torch.testing.assert_close(reference.quant_linear(x, weight, bias), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("qtype", QTYPES)
def test_embedding_gives_the_dequantised_rows_bit_for_bit(qtype: str) -> None:
    weight = random_weight(qtype, 19, 512, torch.Generator().manual_seed(7))
    ids = torch.tensor([18, 0, 5, 5])
    assert torch.equal(reference.embedding(ids, weight, torch.float32).double(), naive.dense(weight)[ids])


def test_norm_add_gives_the_sum_as_it_is_rounded_and_the_norm_of_that() -> None:
    x, residual = torch.randn(2, 9, 640, generator=torch.Generator().manual_seed(8)).bfloat16().unbind()
    weight = torch.ones(640)
    normed, total = reference.rms_norm_add(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, reference.rms_norm(total, weight, 1e-5))
