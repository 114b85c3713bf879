"""Native products beyond the contract: bit for bit the same whatever the batch, the threads and the instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels.conformance_weights import random_weight
from kernels.cpu.launch import missing, native
from kernels.cpu.linear import embedding, gated_linear, pack, quant_linears
from kernels.cpu.rows import gelu_tanh_mul, silu_mul
from kernels.ops import BLOCKS, DENSE, SCALED, Weight
from kernels.reference.dequant import dense

pytestmark = pytest.mark.skipif(missing is not None, reason=f"no native operators: {missing}")

N_IN = 1536
ROWS = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 40, 64, 257, 300)
"""Around the sizes of every tile and pass."""


@pytest.fixture(autouse=True)
def _machine_as_before() -> Iterator[None]:
    level, n_threads = native.level(), native.n_threads()
    yield
    native.set_level(level)
    native.set_threads(n_threads)


def _product(x: Tensor, packed: object, n_out: int, exact: bool) -> Tensor:
    out = torch.full((len(x), n_out), torch.nan)
    native.Linears(x.data_ptr(), x.stride(0), [packed], [0], [out.data_ptr()], exact).run(len(x))
    return out


def _packed(weight: Weight) -> object:
    return pack(weight).native


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("qtype", "group"),
    [
        *((qtype, None) for qtype in (*BLOCKS, *DENSE)),
        *((qtype, group) for qtype in SCALED for group in (32, 64, 96, 128, N_IN)),
        ("E2M1", 16),
        ("E2M1", 48),
    ],
)
def test_a_row_alone_and_in_any_batch_is_the_same_bits(qtype: str, group: int | None, exact: bool) -> None:
    """On every level, with one thread and several: the integers are exact, and the order of the roundings is fixed."""
    g = torch.Generator().manual_seed(1)
    weight = random_weight(qtype, 41, N_IN, g, group, zeros=group not in (96, N_IN), order=group in (64, 48))
    packed = _packed(weight)
    x = torch.randn(max(ROWS), N_IN, generator=g) * torch.logspace(-3, 3, max(ROWS))[:, None]
    wanted = None
    for level in native.levels():
        native.set_level(level)
        for n_threads in (1, 3):
            native.set_threads(n_threads)
            alone = torch.cat([_product(x[i : i + 1], packed, 41, exact) for i in range(max(ROWS))])
            wanted = alone if wanted is None else wanted
            assert torch.equal(alone, wanted), f"{level}, {n_threads} threads: other bits than on the first level"
            for n in ROWS:
                assert torch.equal(_product(x[:n], packed, 41, exact), wanted[:n]), f"{level}, {n_threads} threads, {n} rows"


@pytest.mark.parametrize("level", native.levels() if native else [])
def test_what_is_not_finite_stays_so_in_its_row_only(level: str) -> None:
    native.set_level(level)
    g = torch.Generator().manual_seed(2)
    packed = _packed(random_weight("Q4_K", 16, N_IN, g))
    x = torch.randn(20, N_IN, generator=g)
    x[3, 70], x[5, 800], x[11, 0] = torch.nan, torch.inf, -torch.inf
    for n in (6, 20):
        finite = _product(x[:n], packed, 16, exact=False).isfinite().all(1)
        assert finite.tolist() == [i not in (3, 5, 11) for i in range(n)]


MIXES = (
    ("Q4_K", "Q6_K", "Q8_0"),
    ("Q8_0", "Q5_1", "Q4_0", "Q6_K"),
    ("INT8", "Q5_K", "INT4"),
    ("Q4_K", "F16", "Q8_0"),
    ("Q2_K", "Q3_K", "IQ4_XS", "Q6_K"),
    ("MXFP4", "Q8_0", "TQ1_0", "Q2_K"),
    ("E2M1", "INT8", "TQ2_0", "IQ4_NL"),
    ("IQ2_XS", "IQ3_S", "IQ1_M", "Q8_0"),
)
"""Formats that need different things of the activations; with floats among them, none is multiplied as integers."""


@pytest.mark.parametrize("qtypes", MIXES, ids="-".join)
@pytest.mark.parametrize("level", native.levels() if native else [])
def test_weights_of_several_types_on_one_x_are_multiplied_as_each_alone(level: str, qtypes: tuple[str, ...]) -> None:
    native.set_level(level)
    g = torch.Generator().manual_seed(8)
    weights = [pack(random_weight(qtype, n_out, 512, g)) for qtype, n_out in zip(qtypes, (33, 16, 5, 40), strict=False)]
    exact = any(qtype in DENSE for qtype in qtypes)
    for n in (1, 3, 17, 40):
        x = torch.randn(n, 512, generator=g)
        alone = [quant_linears(x, [weight], [None], exact=exact)[0] for weight in weights]
        for got, wanted in zip(quant_linears(x, weights, [None] * len(weights)), alone, strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    "qtypes",
    [
        ("Q4_K", "Q6_K"),
        ("Q6_K", "Q8_0"),
        ("Q8_0", "Q4_1"),
        ("INT8", "Q5_0"),
        ("F32", "Q4_K"),
        ("Q2_K", "Q3_K"),
        ("IQ4_XS", "Q2_K"),
    ],
    ids="-".join,
)
@pytest.mark.parametrize("level", native.levels() if native else [])
def test_gate_and_up_may_be_of_two_types(level: str, qtypes: tuple[str, str]) -> None:
    native.set_level(level)
    g = torch.Generator().manual_seed(9)
    gate, up = (pack(random_weight(qtype, 37, 512, g)) for qtype in qtypes)
    exact = any(qtype in DENSE for qtype in qtypes)
    for n in (1, 3, 17, 40):
        x = torch.randn(n, 512, generator=g)
        wanted = silu_mul(*(quant_linears(x, [weight], [None], exact=exact)[0] for weight in (gate, up)))
        assert torch.equal(gated_linear(x, gate, up, (None, None), "silu"), wanted)


@pytest.mark.parametrize("qtype", [*BLOCKS, "INT4", "INT8", "E2M1"])
def test_a_product_made_on_one_level_may_run_on_another(qtype: str) -> None:
    g = torch.Generator().manual_seed(10)
    weight, x = random_weight(qtype, 20, 512, g), torch.randn(5, 512, generator=g)
    packed, out = _packed(weight), torch.empty(5, 20)
    wanted = _product(x, packed, 20, exact=False)
    for made in native.levels():
        native.set_level(made)
        product = native.Linears(x.data_ptr(), 512, [packed], [0], [out.data_ptr()], False)
        for used in native.levels():
            native.set_level(used)
            out.fill_(torch.nan)
            product.run(5)
            assert torch.equal(out, wanted), f"made on {made}, run on {used}"


def test_rows_of_x_may_lie_apart() -> None:
    g = torch.Generator().manual_seed(3)
    packed = _packed(random_weight("Q5_0", 33, 512, g))
    wide = torch.randn(9, 700, generator=g)
    assert torch.equal(_product(wide[:, 100:612], packed, 33, False), _product(wide[:, 100:612].contiguous(), packed, 33, False))


def test_a_weight_of_any_height_is_packed_whole() -> None:
    """Rows past the last of a panel are padding, and nothing is written past the result."""
    for n_out in (1, 15, 16, 17, 31):
        weight = random_weight("Q6_K", n_out, 256, torch.Generator().manual_seed(n_out))
        guarded = torch.full((3, n_out + 7), 5.0)
        x = torch.randn(1, 256)
        native.Linears(x.data_ptr(), 256, [_packed(weight)], [0], [guarded.data_ptr()], True).run(1)
        torch.testing.assert_close(guarded.flatten()[None, :n_out], x @ dense(weight).T, rtol=1e-4, atol=1e-3)
        assert guarded.flatten()[n_out:].eq(5.0).all()


@pytest.mark.parametrize(
    ("qtype", "n_in", "message"),
    [("Q4_K", 128, "whole blocks of 256"), ("Q9_9", 256, "not a type"), ("Q8_0", 33, "whole blocks of 32")],
)
def test_what_cannot_be_packed_is_refused_by_name(qtype: str, n_in: int, message: str) -> None:
    data = torch.zeros(4096, dtype=torch.uint8)
    with pytest.raises(ValueError, match=message):
        native.Packed(qtype, 4, n_in, data.data_ptr(), 512)


@pytest.mark.parametrize(
    ("scales", "group", "message"),
    [(True, 48, "INT4 has whole blocks of 32"), (True, 160, "INT4 needs"), (True, 0, "INT4 needs"), (False, 64, "INT4 needs")],
)
def test_groups_that_cannot_be_packed_are_refused(scales: bool, group: int, message: str) -> None:
    data, ones = torch.zeros(4, 128, dtype=torch.uint8), torch.ones(4, 8)
    with pytest.raises(ValueError, match=message):
        native.Packed("INT4", 4, 256, data.data_ptr(), 128, ones.data_ptr() if scales else 0, 0, group)


@pytest.mark.parametrize("level", native.levels() if native else [])
@pytest.mark.parametrize("qtype", SCALED)
@pytest.mark.parametrize(("n_in", "group"), [(640, 128), (320, 64), (480, 96), (480, 480)])
def test_rows_with_scales_of_their_own_are_dequantised_to_the_bit(level: str, qtype: str, n_in: int, group: int) -> None:
    native.set_level(level)
    weight = random_weight(qtype, 19, n_in, torch.Generator().manual_seed(5), group)
    assert torch.equal(embedding(torch.arange(19), pack(weight), torch.float32), dense(weight))


@pytest.mark.parametrize("level", native.levels() if native else [])
def test_every_number_of_fp8_is_exact(level: str) -> None:
    native.set_level(level)
    bits = torch.arange(256, dtype=torch.uint8)[None]
    bits[bits & 127 == 127] = 0
    weight = Weight("FP8", (1, 256), bits.view(torch.float8_e4m3fn), torch.ones(1, 1))
    assert torch.equal(embedding(torch.tensor([0]), pack(weight), torch.float32), dense(weight))


@pytest.mark.parametrize("level", native.levels() if native else [])
def test_scales_that_are_powers_of_two_take_no_more_than_in_a_file(level: str) -> None:
    """All that E8M0 has and float32 too, zero among them; one scale that is none makes all of them float32."""
    native.set_level(level)
    g = torch.Generator().manual_seed(11)
    data = torch.randint(0, 256, (17, 256), dtype=torch.uint8, generator=g)
    scales = 2.0 ** torch.randint(-126, 128, (17, 16), generator=g)
    scales[3, 5], scales[2, 0] = 0, -1
    short = Weight("E2M1", (17, 512), data, scales)
    assert pack(short).n_bytes == 32 * 512 // 32 * 18
    for weight in (short, Weight("E2M1", (17, 512), data, scales.where(scales != 0, 1.1))):
        assert torch.equal(embedding(torch.arange(17), pack(weight), torch.float32), dense(weight))
    assert pack(weight).n_bytes == 32 * 512 // 32 * 20


@pytest.mark.parametrize("level", native.levels() if native else [])
@pytest.mark.parametrize("qtype", ["MXFP4", "TQ1_0", "IQ4_XS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"])
def test_every_byte_of_a_block_is_dequantised_to_the_bit(level: str, qtype: str) -> None:
    """Each E8M0 with each byte of codes, digits of base 3 that no file has, scales of 6 bits, and places of grids."""
    native.set_level(level)
    n_values, n_bytes = BLOCKS[qtype]
    blocks = (torch.arange(256 * 256) * 7).to(torch.uint8).view(256, 256) + torch.arange(256, dtype=torch.uint8)[:, None]
    blocks = blocks[:, :n_bytes].contiguous()
    if qtype != "MXFP4":
        at = 52 if qtype == "TQ1_0" else 0
        blocks[:, at : at + 2] = torch.tensor([0.25]).half().view(torch.uint8)
    weight = Weight(qtype, (256, n_values), blocks)
    assert torch.equal(embedding(torch.arange(256), pack(weight), torch.float32), dense(weight))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("level", native.levels() if native else [])
def test_columns_in_another_order_are_those_of_x_in_that_order(level: str, exact: bool) -> None:
    native.set_level(level)
    g = torch.Generator().manual_seed(12)
    weight = random_weight("INT4", 37, 512, g, 128, order=True)
    plain = replace(weight, order=None)
    for n in (1, 3, 17, 40):
        x = torch.randn(n, 512, generator=g)
        wanted = _product(x[:, weight.order].contiguous(), _packed(plain), 37, exact)
        assert torch.equal(_product(x, _packed(weight), 37, exact), wanted)


@pytest.mark.parametrize("exact", [False, True])
def test_weights_of_different_orders_on_one_x_are_multiplied_as_each_alone(exact: bool) -> None:
    g = torch.Generator().manual_seed(13)
    weights = [random_weight("INT4", 37, 512, g, order=order) for order in (True, False, True, False)]
    weights.append(replace(weights[1], order=weights[0].order.clone()))
    packed = [pack(weight) for weight in weights]
    biases = [torch.randn(37, generator=g) for _ in weights]
    for n in (1, 40):
        x = torch.randn(n, 512, generator=g)
        alone = [quant_linears(x, [p], [b], exact=exact)[0] for p, b in zip(packed, biases, strict=True)]
        for got, wanted in zip(quant_linears(x, packed, biases, exact=exact), alone, strict=True):
            assert torch.equal(got, wanted)
        gated = gated_linear(x, packed[0], packed[1], (biases[0], biases[1]), "gelu_tanh", exact=exact)
        assert torch.equal(gated, gelu_tanh_mul(alone[0], alone[1]))
        launched = gated_linear(x, packed[0], packed[4], (biases[0], biases[4]), "silu", exact=exact)
        assert torch.equal(launched, silu_mul(alone[0], alone[4]))
    with pytest.raises(ValueError, match="in different orders"):
        native.Linears(x.data_ptr(), 512, [packed[0].native, packed[1].native], [0, 0], [0, 0], exact)
    with pytest.raises(ValueError, match="in different orders"):
        native.GatedLinear(x.data_ptr(), 512, packed[0].native, packed[2].native, 0, 0, False, 0, exact)


@pytest.mark.parametrize("wrong", [-1, 512, 3])
def test_an_order_that_is_no_permutation_is_refused(wrong: int) -> None:
    weight = random_weight("INT4", 4, 512, torch.Generator(), order=True)
    order = torch.arange(512, dtype=torch.int32)
    order[200] = wrong
    with pytest.raises(ValueError, match="each of 0 to 511 once"):
        pack(replace(weight, order=order))


def test_rows_are_not_looked_up_in_a_weight_whose_columns_are_in_another_order() -> None:
    packed = pack(random_weight("INT8", 4, 512, torch.Generator(), order=True))
    with pytest.raises(ValueError, match="in their own order"):
        embedding(torch.tensor([1]), packed, torch.float32)


@pytest.mark.parametrize("zero", [-129, 129, 300])
def test_zero_points_that_eight_bits_do_not_have_are_refused(zero: int) -> None:
    weight = random_weight("INT8", 4, 512, torch.Generator())
    with pytest.raises(ValueError, match=f"-128 to 128, not {abs(zero)}"):
        pack(replace(weight, zeros=torch.full_like(weight.zeros, zero)))


@pytest.mark.parametrize("qtype", SCALED)
def test_a_part_of_a_wider_weight_is_packed(qtype: str) -> None:
    weight = random_weight(qtype, 20, 512, torch.Generator().manual_seed(6), 64)
    parts = [None if x is None else x[3:, : x.shape[1] // 2] for x in (weight.data, weight.scales, weight.zeros)]
    half = Weight(qtype, (17, 256), *parts)
    assert torch.equal(embedding(torch.arange(17), pack(half), torch.float32), dense(weight)[3:, :256])


def test_a_weight_survives_those_that_were_packed_before_and_after_it() -> None:
    """Small matrices share large pages."""
    g = torch.Generator().manual_seed(4)
    x = torch.randn(2, 256, generator=g)
    weights = [random_weight("Q4_0", 64, 256, g) for _ in range(50)]
    packed = [_packed(weight) for weight in weights]
    wanted = [_product(x, p, 64, False) for p in packed]
    del packed[::2]
    _packed(random_weight("Q8_0", 4096, 1024, g))
    assert all(torch.equal(_product(x, p, 64, False), w) for p, w in zip(packed, wanted[1::2], strict=True))
