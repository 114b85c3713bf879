"""The reference operators against formulas written a second time, in float64 and without any paging or tiling."""

from __future__ import annotations

import math

import gguf
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from kernels import reference
from kernels.conformance import BATCHES, BLOCK_SIZE, attention_arguments, cases, random_weight
from kernels.ops import BLOCKS, DENSE, OpSpec, Weight
from kernels.reference import attention, linear

F32 = OpSpec(dtype=torch.float32, kv_dtype=torch.float32, head_size=64)


def _dense(weight: Weight) -> torch.Tensor:
    if weight.qtype in DENSE:
        return weight.data.double()
    kind = gguf.GGMLQuantizationType[weight.qtype]
    return torch.from_numpy(gguf.quants.dequantize(weight.data.numpy(), kind)).double()


def _naive_attention(q, k_cache, v_cache, starts, contexts, tables, scale, window, soft_cap) -> torch.Tensor:
    """One query row at a time, over a Python list of the positions it sees."""
    out = torch.zeros_like(q, dtype=torch.float64)
    group = q.shape[1] // k_cache.shape[2]
    for i in range(len(contexts)):
        n_query = int(starts[i + 1] - starts[i])
        for j in range(n_query):
            position = int(contexts[i]) - n_query + j
            seen = [p for p in range(position + 1) if not window or position - p < window]
            places = [(int(tables[i, p // BLOCK_SIZE]), p % BLOCK_SIZE) for p in seen]
            keys = torch.stack([k_cache[place] for place in places]).double().repeat_interleave(group, 1)
            values = torch.stack([v_cache[place] for place in places]).double().repeat_interleave(group, 1)
            row = int(starts[i]) + j
            scores = torch.einsum("hd,phd->hp", q[row].double(), keys) * scale
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            out[row] = torch.einsum("hp,phd->hd", scores.softmax(-1), values)
    return out


@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("soft_cap", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
def test_attention_sees_exactly_its_context(batch: str, window: bool, soft_cap: bool) -> None:
    spec = OpSpec(dtype=torch.float32, kv_dtype=torch.float32, head_size=32, window=window, soft_cap=soft_cap)
    args = attention_arguments(spec, BATCHES[batch], torch.Generator().manual_seed(3))
    assert args[1].isnan().any()
    torch.testing.assert_close(reference.paged_attention(*args).double(), _naive_attention(*args), rtol=1e-5, atol=1e-5)


def test_attention_equals_torch_on_a_whole_prompt() -> None:
    args = attention_arguments(F32, ((50, 50),), torch.Generator().manual_seed(4))
    q, k_cache, v_cache, *_ = args
    table = args[5][0, :4].long()
    k, v = (cache[table].flatten(0, 1)[:50].transpose(0, 1) for cache in (k_cache, v_cache))
    expected = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, is_causal=True, enable_gqa=True).transpose(0, 1)
    torch.testing.assert_close(reference.paged_attention(*args), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [False, True])
def test_attention_in_tiles_of_query_rows_equals_attention_at_once(window: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = OpSpec(dtype=torch.float32, kv_dtype=torch.float32, head_size=64, window=window)
    args = attention_arguments(spec, BATCHES["chunks beside decodes"], torch.Generator().manual_seed(5))
    at_once = reference.paged_attention(*args)
    monkeypatch.setattr(attention, "_MOST_SCORES", 1000)
    torch.testing.assert_close(reference.paged_attention(*args), at_once, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("qtype", [*DENSE, *BLOCKS])
def test_linear_multiplies_by_the_dequantised_weight(qtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_TILE_VALUES", 1000)  # tiles that do not divide the rows evenly
    g = torch.Generator().manual_seed(6)
    weight, x, bias = random_weight(qtype, 11, 512, g), torch.randn(5, 512, generator=g), torch.randn(11, generator=g)
    expected = x.double() @ _dense(weight).T + bias.double()
    torch.testing.assert_close(reference.quant_linear(x, weight, bias).double(), expected, rtol=1e-4, atol=1e-4)
    without = reference.quant_linear(x.bfloat16(), weight)
    assert without.dtype == torch.bfloat16
    torch.testing.assert_close(without.double(), x.bfloat16().double() @ _dense(weight).T, rtol=2e-2, atol=1e-1)


@pytest.mark.parametrize("qtype", [*DENSE, *BLOCKS])
def test_embedding_gives_the_dequantised_rows(qtype: str) -> None:
    weight = random_weight(qtype, 19, 512, torch.Generator().manual_seed(7))
    ids = torch.tensor([18, 0, 5, 5])
    assert torch.equal(reference.embedding(ids, weight, torch.float32).double(), _dense(weight)[ids])
    assert reference.embedding(ids, weight, torch.float16).dtype == torch.float16


def test_norm_divides_by_the_root_of_the_mean_square() -> None:
    for case in cases("rms_norm", F32):
        x, weight, eps = case.make()
        expected = x.double() / (x.double().pow(2).sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt() * weight.double()
        torch.testing.assert_close(reference.rms_norm(x, weight, eps).double(), expected, rtol=1e-5, atol=1e-6)


def test_norm_add_gives_the_norm_of_the_sum_and_the_sum() -> None:
    for case in cases("rms_norm_add", F32):
        x, residual, weight, eps = case.make()
        normed, total = reference.rms_norm_add(x, residual, weight, eps)
        assert torch.equal(total, x + residual)
        assert torch.equal(normed, reference.rms_norm(x + residual, weight, eps))


def test_rope_turns_each_pair_by_its_angle_and_writes_where_slots_say() -> None:
    for case in cases("rope_and_write_kv", F32):
        q, k, v, cos, sin, k_cache, v_cache, slots = case.make()
        untouched = k_cache.clone()
        half = cos.shape[-1]

        def turned(x: torch.Tensor, cos: torch.Tensor = cos, sin: torch.Tensor = sin, half: int = half) -> torch.Tensor:
            pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
            pairs = pairs * torch.complex(cos.double(), sin.double()).unsqueeze(1)
            return torch.cat((pairs.real, pairs.imag, x[..., 2 * half :].double()), -1)

        rotated = reference.rope_and_write_kv(q, k, v, cos, sin, k_cache, v_cache, slots)
        torch.testing.assert_close(rotated.double(), turned(q), rtol=1e-5, atol=1e-5)
        written = [slot for slot in slots.tolist() if slot >= 0]
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                place = divmod(slot, BLOCK_SIZE)
                torch.testing.assert_close(k_cache[place].double(), turned(k)[row], rtol=1e-5, atol=1e-5)
                assert torch.equal(v_cache[place], v[row])
        others = [slot for slot in range(k_cache.shape[0] * BLOCK_SIZE) if slot not in written]
        assert torch.equal(k_cache.flatten(0, 1)[others].isnan(), untouched.flatten(0, 1)[others].isnan())


def test_activations_follow_their_formulas_and_stay_finite() -> None:
    for case in cases("silu_mul", F32):
        gate, up = case.make()
        x = gate.double().numpy()
        silu = x / (1 + np.exp(-x))
        gelu = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        for op, expected in ((reference.silu_mul, silu), (reference.gelu_tanh_mul, gelu)):
            result = op(gate, up)
            assert result.isfinite().all()
            np.testing.assert_allclose(result.double().numpy(), expected * up.double().numpy(), rtol=1e-4, atol=1e-4)


def test_copied_blocks_equal_their_sources_and_nothing_else_changes() -> None:
    k_cache, v_cache = torch.randn(2, 5, BLOCK_SIZE, 2, 8).unbind()
    before = k_cache.clone()
    reference.copy_blocks(k_cache, v_cache, [(0, 3), (4, 1)])
    assert torch.equal(k_cache, before[[0, 4, 2, 0, 4]])
    assert torch.equal(v_cache[3], v_cache[0])
