"""The native attention beyond its contract: a row's bits depend on the row alone, on every instruction-set level."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.conformance import new_caches, new_scales, set_random
from kernels.cpu.attention import paged_attention
from kernels.cpu.cache import copy_blocks, rope_and_write_kv
from kernels.cpu.launch import missing, native
from kernels.ops import OpSpec

pytestmark = pytest.mark.skipif(missing is not None, reason=f"{missing}")
LEVELS = [] if missing else native.levels()
N_HEADS, N_KV_HEADS, HEAD_DIM, CONTEXT = 6, 2, 64, 700
SPEC = OpSpec(dtype=torch.float32, kv_dtype=torch.float32, head_size=HEAD_DIM)
TYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8]


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    before, n_threads = native.level(), native.n_threads()
    native.set_level(request.param)
    yield
    native.set_level(before)
    native.set_threads(n_threads)


class Text:
    """One sequence of CONTEXT positions: its queries, and its keys and values in a cache that has other things too."""

    def __init__(self, spec: OpSpec, *, block_size: int = 16, by_dims: bool = True, seed: int = 0) -> None:
        d = spec.head_size
        g = torch.Generator().manual_seed(7)
        self.q = torch.randn(CONTEXT, N_HEADS, d, generator=g)
        n_blocks = -(-CONTEXT // block_size)
        self.caches = new_caches(spec, n_blocks + 9, block_size, N_KV_HEADS, by_dims=by_dims)
        self.scales = new_scales(spec, n_blocks + 9, block_size, N_KV_HEADS, by_dims=by_dims)
        order = torch.Generator().manual_seed(seed)
        self.table = torch.randperm(n_blocks + 9, generator=order)[:n_blocks].int()
        positions = torch.arange(CONTEXT)
        blocks = self.table[positions // block_size].long()
        set_random(self.caches, self.scales, (blocks, positions % block_size), g)
        self.settings = (d**-0.5, 100 if spec.window else 0, 5.0 if spec.soft_cap else 0.0)
        self.chunked = spec.chunked

    def rows(self, *parts: tuple[int, int]) -> Tensor:
        """Attention of positions first .. last for each part, all in one call."""
        q = torch.cat([self.q[first:last] for first, last in parts])
        starts = torch.tensor([0, *(last - first for first, last in parts)]).cumsum(0).int()
        contexts = torch.tensor([last for _, last in parts], dtype=torch.int32)
        tables = self.table.repeat(len(parts), 1)
        return paged_attention(q, *self.caches, starts, contexts, tables, *self.settings, self.scales, None, self.chunked)


@pytest.mark.parametrize("kv_dtype", TYPES)
@pytest.mark.parametrize(
    ("window", "chunked", "soft_cap"), [(False, False, False), (True, False, False), (True, True, False), (False, False, True)]
)
@pytest.mark.parametrize("head_size", [64, 72, 80])
def test_a_row_has_the_same_bits_alone_in_a_batch_and_in_any_chunk(
    head_size: int, kv_dtype: torch.dtype, window: bool, chunked: bool, soft_cap: bool
) -> None:
    flags = {"window": window, "chunked": chunked, "soft_cap": soft_cap}
    text = Text(OpSpec(dtype=torch.float32, kv_dtype=kv_dtype, head_size=head_size, **flags))
    native.set_threads(1)
    whole = text.rows((0, CONTEXT))
    assert whole.isfinite().all()
    for n_threads in (1, 2):
        native.set_threads(n_threads)
        rows = [*range(0, CONTEXT, 37), 255, 256, 511, 512, CONTEXT - 1]
        alone = torch.cat([text.rows((row, row + 1)) for row in rows])
        assert torch.equal(alone, whole[rows])
        assert torch.equal(text.rows(*((row, row + 1) for row in rows)), whole[rows])
        chunks = [(0, 5), (5, 21), (21, 22), (22, 150), (150, 300), (300, CONTEXT)]
        assert torch.equal(text.rows(*chunks), whole)
        assert torch.equal(torch.cat([text.rows(chunk) for chunk in chunks]), whole)


@pytest.mark.parametrize("kv_dtype", TYPES)
def test_where_blocks_lie_and_how_large_they_are_does_not_change_a_bit(kv_dtype: torch.dtype) -> None:
    spec = OpSpec(dtype=torch.float32, kv_dtype=kv_dtype, head_size=HEAD_DIM)
    whole = Text(spec).rows((0, CONTEXT), (690, CONTEXT))
    others = [Text(spec, seed=1), *(Text(spec, block_size=n) for n in (1, 8, 64, 128)), Text(spec, by_dims=False)]
    for other in others:
        assert torch.equal(other.rows((0, CONTEXT), (690, CONTEXT)), whole)


@pytest.mark.parametrize("n_threads", [3, 8, 32])
def test_a_long_text_is_cut_for_many_threads_without_changing_a_bit(n_threads: int) -> None:
    text = Text(SPEC)
    native.set_threads(1)
    parts = [(695, CONTEXT), (CONTEXT - 1, CONTEXT)]
    wanted = text.rows(*parts)
    native.set_threads(n_threads)
    for _ in range(5):
        assert torch.equal(text.rows(*parts), wanted)


@pytest.mark.parametrize(
    ("kv_dtype", "bad"),
    [*itertools.product([torch.float32, torch.float16, torch.int8], [torch.inf, torch.nan]), (torch.float8_e4m3fn, torch.nan)],
)
def test_what_a_row_does_not_see_cannot_reach_it(kv_dtype: torch.dtype, bad: float) -> None:
    text = Text(OpSpec(dtype=torch.float32, kv_dtype=kv_dtype, head_size=HEAD_DIM))
    wanted = text.rows((0, CONTEXT))
    for plane in text.scales or text.caches:
        plane[text.table[650 // 16].long(), 650 % 16] = bad
    got = text.rows((0, CONTEXT))
    assert torch.equal(got[:650], wanted[:650])
    assert not got[650:].isfinite().any()


def test_queries_may_be_slices_of_wider_rows() -> None:
    text = Text(SPEC)
    wanted = text.rows((100, 120))
    text.q = torch.cat((text.q, torch.full((CONTEXT, 3, HEAD_DIM), torch.nan)), 1)[:, :N_HEADS]
    args = (torch.tensor([0, 20], dtype=torch.int32), torch.tensor([120], dtype=torch.int32), text.table[None])
    assert torch.equal(paged_attention(text.q[100:120], *text.caches, *args, *text.settings), wanted)


def test_heads_that_scratch_memory_has_no_room_for_are_refused() -> None:
    rows, none = torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32)
    x, cache, angles = torch.zeros(1, 1, 592), torch.zeros(1, 16, 1, 592), torch.zeros(1, 296)
    with pytest.raises(ValueError, match="at most 576 dims, not 592"):
        paged_attention(x, cache, cache, torch.zeros(1, dtype=torch.int32), none, none.view(0, 0), 1.0)
    with pytest.raises(ValueError, match="at most 576 dims, not 592"):
        rope_and_write_kv(x, x, x, rows, angles, angles, cache, cache, rows)


def test_no_sequences_give_no_rows() -> None:
    empty = torch.zeros(0, dtype=torch.int32)
    args = (*Text(SPEC).caches, torch.zeros(1, dtype=torch.int32), empty, torch.zeros(0, 4, dtype=torch.int32), 1.0)
    assert paged_attention(torch.zeros(0, N_HEADS, HEAD_DIM), *args).shape == (0, N_HEADS, HEAD_DIM)


@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_keys_and_values_are_rounded_into_the_cache_as_torch_rounds(kv_dtype: torch.dtype) -> None:
    """But float16 and E4M3 keep what is larger than their largest number, which these reach, from becoming infinite or NaN."""
    spec = OpSpec(dtype=torch.float32, kv_dtype=kv_dtype, head_size=40)
    g = torch.Generator().manual_seed(3)
    k, v = torch.randn(2, 9, 2, 40, generator=g).mul(torch.logspace(-9, 5, 40)).unbind()
    v[0, 0, 0], v[1, 0, 0], v[2, 0, 0] = torch.nan, torch.inf, -torch.inf
    caches = new_caches(spec, 1, 16, 2, by_dims=True)
    cos, sin = torch.ones(1, 20), torch.zeros(1, 20)
    rows = torch.arange(9)
    rope_and_write_kv(torch.randn(9, 2, 40), k, v, torch.zeros_like(rows), cos, sin, *caches, rows)
    for cache, x in zip(caches, (k, v), strict=True):
        kept = x if kv_dtype == torch.bfloat16 else x.clamp(-torch.finfo(kv_dtype).max, torch.finfo(kv_dtype).max)
        torch.testing.assert_close(cache[0, :9].float(), kept.to(kv_dtype).float(), rtol=0, atol=0, equal_nan=True)
    assert (k.abs() > 65504).any()


E4M3 = OpSpec(dtype=torch.float32, kv_dtype=torch.float8_e4m3fn, head_size=64)


def _e4m3(bits: int) -> float:
    """By arXiv:2209.05433: the sign, four bits of exponent with a bias of 7, three of mantissa; all ones are NaN."""
    exponent, mantissa = bits >> 3 & 15, bits & 7
    size = math.nan if bits & 127 == 127 else math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)
    return -size if bits & 128 else size


def _written(x: Tensor) -> Tensor:
    """x [n, 64], n a multiple of 16, as values of E4M3 [n, 64] uint8."""
    rows = torch.arange(len(x))
    caches = new_caches(E4M3, len(x) // 16, 16, 1, by_dims=True)
    zeros, x = torch.zeros_like(x).unsqueeze(1), x.unsqueeze(1)
    rope_and_write_kv(zeros, zeros.clone(), x, torch.zeros_like(rows), torch.ones(1, 32), torch.zeros(1, 32), *caches, rows)
    return caches[1].view(torch.uint8).flatten(0, 1)[:, 0]


def _read(values: Tensor) -> Tensor:
    """Values [n, 64] uint8 of E4M3 as attention reads them: each is the only one that a row sees, and of weight 1."""
    n = len(values)
    caches = new_caches(E4M3, n, 16, 1, by_dims=True)
    caches[0].view(torch.uint8).zero_()
    caches[1].view(torch.uint8)[:, 0, 0] = values
    table = torch.arange(n, dtype=torch.int32)
    starts, contexts = torch.arange(n + 1, dtype=torch.int32), torch.ones(n, dtype=torch.int32)
    return paged_attention(torch.ones(n, 1, 64), *caches, starts, contexts, table.unsqueeze(1), 1.0)[:, 0]


def test_every_number_of_e4m3_is_read_exactly_and_written_back() -> None:
    bits = torch.arange(256, dtype=torch.uint8).view(4, 64)
    read = _read(bits)
    wanted = torch.tensor([_e4m3(i) for i in range(256)]).view(4, 64)
    torch.testing.assert_close(read, wanted, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(_written(wanted.repeat(4, 1)), bits.repeat(4, 1))


def test_what_lies_between_two_numbers_of_e4m3_is_rounded_to_the_nearest_and_ties_to_even() -> None:
    numbers = torch.tensor([_e4m3(i) for i in range(127)])
    ties = (numbers[1:] + numbers[:-1]) / 2
    below, above = (torch.nextafter(ties, torch.tensor(end)) for end in (0.0, 999.0))
    lower = torch.arange(126, dtype=torch.uint8)
    x = torch.cat((below, ties, above, torch.tensor([2**-149, 464.0, 480.0, 1e9, torch.inf, 449.0])))
    wanted = torch.cat((lower, lower + (lower & 1), lower + 1, torch.tensor([0, *[126] * 5], dtype=torch.uint8)))
    x, wanted = torch.cat((x, -x)), torch.cat((wanted, wanted + 128))
    padded = torch.zeros(16 * 64)
    padded[: len(x)] = x
    assert torch.equal(_written(padded.view(16, 64)).flatten()[: len(x)], wanted)


def test_float32_of_all_sizes_becomes_the_e4m3_of_torch() -> None:
    high, low = torch.arange(1 << 16) << 16, torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    bits = (high.unsqueeze(1) | low).flatten()
    x = (bits - (bits >> 31 << 32)).int().view(torch.float32).view(-1, 64)
    assert torch.equal(_written(x), x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.parametrize("by_dims", [True, False])
@pytest.mark.parametrize("head_size", [40, 64])
def test_int8_keys_and_values_and_their_scales_have_the_bits_of_the_reference(head_size: int, by_dims: bool) -> None:
    spec = OpSpec(dtype=torch.float32, kv_dtype=torch.int8, head_size=head_size)
    g = torch.Generator().manual_seed(3)
    n = 32
    sizes = torch.logspace(-46, 38, n).view(n, 1, 1)
    k, v = torch.randn(2, n, 2, head_size, generator=g).clamp(-3, 3).mul(sizes).unbind()
    v[10], v[11, :, 5], v[12, :, 7] = 0, torch.nan, -torch.inf
    v[13] = torch.arange(head_size) / 2 - 10
    v[13, :, -1] = 127  # so that the others are ties
    q, angles, rows = torch.randn(n, 2, head_size, generator=g), torch.rand(n, head_size // 2, generator=g) * 9, torch.arange(n)
    written = []
    for operator in (reference.rope_and_write_kv, rope_and_write_kv):
        planes = new_caches(spec, 2, 16, 2, by_dims=by_dims), new_scales(spec, 2, 16, 2, by_dims=by_dims)
        operator(q, k, v, rows, angles.cos(), angles.sin(), *planes[0], rows, planes[1])
        written.append([*planes[0], *planes[1]])
    for got, wanted in zip(*written, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    values, scales = (written[1][i].flatten(0, 1) for i in (1, 3))
    assert scales[[11, 12]].isnan().all() and not values[10:13].any() and not scales[10].any()
    assert 0 < scales.nan_to_num()[scales.nan_to_num() > 0].min() < 1e-40, "no scale was too small for a full float"


def test_blocks_with_gaps_are_not_copied() -> None:
    cache = torch.zeros(4, 16, 2, 8)
    with pytest.raises(ValueError, match="not whole"):
        copy_blocks(cache[:, ::2], cache, [(0, 1)])
