"""Native operators of mixtures of experts and of states: what a row becomes hangs on nothing but itself; wrong arguments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.conformance_weights import random_weight
from kernels.cpu.launch import native
from kernels.ops import OpSpec, Routing, Weight
from kernels.registry import implementations, resolve

pytestmark = pytest.mark.skipif(native is None or not native.levels(), reason="there are no native operators here")
N, EXPERTS, USED, SIZE, WIDTH = 150, 7, 3, 256, 64


def _impl(op: str, qtype: str | None = None, *, exact: bool = False):
    return resolve(op, OpSpec(dtype=torch.float32, qtype=qtype, exact=exact))


@pytest.fixture(params=["F32", "Q4_K", "Q8_0", "E2M1", "INT4"])
def experts(request: pytest.FixtureRequest):
    """x -> what the experts make of its rows, each on its own ids and gains; rows: which of all they are."""
    g = torch.Generator().manual_seed(1)
    gate, up = (random_weight(request.param, EXPERTS * WIDTH * 4, SIZE, g) for _ in range(2))
    down = random_weight(request.param, EXPERTS * SIZE, WIDTH * 4, g)
    ids = torch.rand(N, EXPERTS, generator=g).argsort(-1)[:, :USED].int()
    gains = torch.rand(N, USED, generator=g)
    gated, summed = _impl("experts_gated", request.param), _impl("experts_down", request.param)
    packed = [gated.pack(weight) for weight in (gate, up, down)]

    def run(x: Tensor, rows: Tensor) -> Tensor:
        inner = gated.fn(x[rows], ids[rows], packed[0], packed[1], (None, None), EXPERTS, "silu")
        return summed.fn(inner, ids[rows], gains[rows], packed[2], None, EXPERTS)

    return run


def test_a_row_is_the_same_to_the_bit_whatever_its_company(experts) -> None:
    x = torch.randn(N, SIZE, generator=torch.Generator().manual_seed(2))
    whole = experts(x, torch.arange(N))
    for rows in ([0], [149], [3, 3, 3], list(range(5)), list(range(40, 57)), list(range(149, 60, -1))):
        assert torch.equal(experts(x, torch.tensor(rows)), whole[rows])


def test_an_expert_that_does_not_exist_gives_nan_and_no_crash() -> None:
    gated, g = _impl("experts_gated", "F32"), torch.Generator().manual_seed(1)
    gate = gated.pack(random_weight("F32", 2 * 16, 32, g))
    out = gated.fn(torch.randn(2, 32), torch.tensor([[0, 5], [-1, 1]], dtype=torch.int32), gate, gate, (None, None), 2, "silu")
    assert out.view(4, 16).isnan().all(1).tolist() == [False, True, True, False]


def test_columns_in_an_order_of_their_own_are_refused() -> None:
    weight = random_weight("INT4", 32, 64, torch.Generator().manual_seed(1))
    ordered = Weight("INT4", weight.shape, weight.data, weight.scales, weight.zeros, torch.arange(63, -1, -1, dtype=torch.int32))
    impl = _impl("experts_gated", "INT4")
    packed = impl.pack(ordered)
    with pytest.raises(ValueError, match="another order"):
        impl.fn(torch.randn(1, 64), torch.zeros(1, 1, dtype=torch.int32), packed, packed, (None, None), 2, "silu")


def test_equal_scores_go_to_the_lowest_ids_in_every_implementation() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0, 3.0]])
    for impl in implementations("route"):
        assert impl.fn(logits, None, Routing(3))[0].tolist() == [[1, 2, 3]]
        groups = Routing(2, "sigmoid", n_groups=3, n_used_groups=1, n_best=1)
        assert impl.fn(logits, None, groups)[0].tolist() == [[1, 0]]
        assert impl.fn(torch.full((1, 6), torch.nan), None, Routing(2))[0].tolist() == [[0, 1]]


def test_of_logits_whose_sigmoid_is_the_same_the_largest_is_chosen_in_every_implementation() -> None:
    logits = torch.tensor([[30.0, 40.0, 35.0, -3.0]])
    assert logits.sigmoid().unique().numel() == 2
    for impl in implementations("route"):
        ids, gains = impl.fn(logits, None, Routing(2, "chosen_sigmoid"))
        assert ids.tolist() == [[1, 2]] and gains.tolist() == [[1.0, 1.0]]


def test_more_experts_than_the_groups_have_are_refused() -> None:
    with pytest.raises(ValueError, match="groups and experts"):
        _impl("route").fn(torch.zeros(1, 6), None, Routing(3, n_groups=3, n_used_groups=1))


@pytest.mark.parametrize("op", ["causal_conv", "delta_rule", "state_scan"])
def test_a_text_in_chunks_and_in_company_gives_the_same_bits(op: str) -> None:
    g = torch.Generator().manual_seed(4)
    n, heads, keys, dim = 40, 4, 20, 70
    if op == "causal_conv":
        rows, fixed = (torch.randn(n, 150, generator=g),), (torch.randn(150, 4, generator=g), torch.randn(150, generator=g))
        shape = (150, 3)
    elif op == "delta_rule":
        rows = (
            *(torch.randn(n, 2, keys, generator=g) for _ in range(2)),
            torch.randn(n, heads, dim, generator=g),
            *(torch.randn(n, heads, generator=g) for _ in range(2)),
        )
        fixed, shape = (torch.randn(heads, generator=g), torch.randn(heads, generator=g)), (heads, keys, dim)
    else:
        rows = (
            torch.randn(n, heads, dim, generator=g),
            torch.randn(n, heads, generator=g),
            *(torch.randn(n, 2, keys, generator=g) for _ in range(2)),
        )
        fixed, shape = tuple(torch.randn(heads, generator=g) for _ in range(3)), (heads, keys, dim)
    fn = _impl(op).fn

    def run(state: Tensor, starts: list[int], contexts: list[int], blocks: list[int], *parts: slice) -> Tensor:
        taken = [torch.cat([row[part] for part in parts]) for row in rows]
        where = (torch.tensor(values, dtype=torch.int32) for values in (starts, contexts, blocks))
        return fn(*taken, *fixed, state, *where)

    whole_state, state = torch.full((2, 5, *shape), torch.nan).unbind()
    whole = run(whole_state, [0, n], [n], [2], slice(0, n))
    got = [run(state, [0, 7], [7], [3], slice(0, 7))]
    company = run(state, [0, 12, 12 + n], [19, n], [3, 0], slice(7, 19), slice(0, n))
    got += [company[:12], *(run(state, [0, 1], [i + 1], [3], slice(i, i + 1)) for i in range(19, n))]
    assert torch.equal(torch.cat(got), whole)
    assert torch.equal(company[12:], whole)
    assert torch.equal(state[3], whole_state[2]) and torch.equal(state[0], whole_state[2])
    assert state[1].isnan().all()
