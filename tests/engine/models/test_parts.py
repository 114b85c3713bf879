"""Parts and their operators: which ones they ask for, what is packed and shared, and that fusing changes nothing."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.models import operators
from engine.models.operators import Operators
from engine.models.parts import MLP, Embedding, Linear, Linears
from kernels import reference
from kernels.conformance_weights import random_weight
from kernels.ops import Impl, OpSpec, Weight

REFERENCE = {impl.op: impl for impl in reference.IMPLS}


class Packed:
    """What a fake implementation makes of a weight."""

    def __init__(self, weight: Weight) -> None:
        self.weight, self.qtype, self.shape, self.n_bytes = weight, weight.qtype, weight.shape, weight.n_bytes


class Kernels:
    """The reference, and a fake faster source for Q4_1 and Q8_0 that packs weights and notes its calls."""

    def __init__(self) -> None:
        self.specs: list[tuple[str, OpSpec]] = []
        self.calls: list[str] = []
        self._fast = {op: self._faster(op, Packed) for op in ("quant_linear", "quant_linears", "gated_linear", "embedding")}

    def _faster(self, op: str, pack: Any) -> Impl:
        def fn(*args: Any) -> Any:
            self.calls.append(op)
            return REFERENCE[op].fn(*map(_unpacked, args))

        return Impl(op, "cpp", fn, lambda spec: None, (), pack)

    def pack_apart(self, op: str) -> None:
        """Give an operator a pack of its own."""
        self._fast[op] = self._faster(op, lambda weight: Packed(weight))

    def resolve(self, op: str, spec: OpSpec) -> Impl:
        self.specs.append((op, spec))
        return self._fast[op] if op in self._fast and spec.qtype in ("Q4_1", "Q8_0") else REFERENCE[op]


def _unpacked(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return tuple(map(_unpacked, value))
    return value.weight if isinstance(value, Packed) else value


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    kernels = Kernels()
    monkeypatch.setattr(operators, "resolve", kernels.resolve)
    return kernels


@pytest.fixture
def ops(kernels: Kernels) -> Operators:
    return Operators(torch.device("cpu"), torch.float32, torch.float32)


def weight(qtype: str, n_out: int = 32, seed: int = 0) -> Weight:
    return random_weight(qtype, n_out, 256, torch.Generator().manual_seed(seed))


def filled(ops: Operators, *qtypes: str) -> list[Linear]:
    parts = [Linear(ops, 256, 32 + i) for i in range(len(qtypes))]
    for i, (part, qtype) in enumerate(zip(parts, qtypes, strict=True)):
        part.fill(weight(qtype, 32 + i, seed=i))
    return parts


def test_fill_says_whether_the_files_memory_stays_in_use(ops: Operators) -> None:
    plain, fast = Linear(ops, 256, 32), Linear(ops, 256, 32)
    assert plain.fill(weight("Q5_0")) and plain.weight.qtype == "Q5_0"
    assert not fast.fill(weight("Q4_1")) and isinstance(fast.weight, Packed)
    assert not ops.native


@pytest.mark.parametrize(
    ("qtypes", "calls"),
    [
        (("Q4_1", "Q4_1", "Q4_1"), ["quant_linears"]),
        (("Q4_1", "Q4_1", "Q8_0"), ["quant_linears"]),
        (("Q4_1", "Q5_0", "Q8_0"), ["quant_linear", "quant_linear"]),
        (("Q5_0", "Q5_0", "Q5_0"), []),
    ],
)
def test_weights_that_one_implementation_takes_are_multiplied_in_one_call(
    ops: Operators, kernels: Kernels, qtypes: tuple[str, ...], calls: list[str]
) -> None:
    parts = filled(ops, *qtypes)
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(1))
    together = Linears(ops, *parts)
    got = together(x)
    assert kernels.calls == calls
    for i, (y, qtype) in enumerate(zip(got, qtypes, strict=True)):
        assert torch.equal(y, reference.quant_linear(x, weight(qtype, 32 + i, seed=i)))


def test_a_fused_operator_that_packs_in_its_own_way_is_not_taken(ops: Operators, kernels: Kernels) -> None:
    kernels.pack_apart("quant_linears")
    Linears(ops, *filled(ops, "Q4_1", "Q4_1"))(torch.randn(1, 256))
    assert kernels.calls == ["quant_linear", "quant_linear"]


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("up", "calls"), [("Q8_0", ["gated_linear"]), ("Q5_0", ["quant_linear"])])
def test_gate_and_up_are_one_call_where_that_can_be(
    ops: Operators, kernels: Kernels, activation: str, up: str, calls: list[str]
) -> None:
    config = SimpleNamespace(hidden_size=256, intermediate_size=256, activation=activation)
    mlp = MLP(config, ops, bias=True)
    weights = {mlp.gate: weight("Q4_1", 256, 1), mlp.up: weight(up, 256, 2), mlp.down: weight("Q5_0", 256, 3)}
    for i, (part, value) in enumerate(weights.items()):
        part.fill(value)
        part.bias.fill(torch.full((256,), float(i)))
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(1))
    hidden = reference.gated_linear(x, weights[mlp.gate], weights[mlp.up], (torch.zeros(256), torch.ones(256)), activation)
    assert torch.equal(mlp(x), reference.quant_linear(hidden, weights[mlp.down], torch.full((256,), 2.0)))
    assert kernels.calls == calls
    alive = weakref.ref(mlp)
    del mlp
    assert alive() is None, "what it refers to refers to it, so that only the garbage collector frees its weights"


def test_a_tied_head_shares_what_the_embedding_packed(ops: Operators, kernels: Kernels) -> None:
    for apart in (False, True):
        if apart:
            kernels.pack_apart("embedding")
        head = Linear(ops, 256, 32)
        embedding = Embedding(ops, 32, 256, scale=3.0, head=head)
        assert not embedding.fill(weight("Q4_1"))
        assert (head.weight is embedding.weight) != apart
        ids = torch.tensor([4, 0])
        assert torch.equal(embedding(ids), reference.embedding(ids, weight("Q4_1"), torch.float32, 3.0))


def test_exact_is_asked_of_products_and_of_nothing_else(kernels: Kernels) -> None:
    ops = Operators(torch.device("cpu"), torch.float32, torch.float32, exact=True)
    Embedding(ops, 32, 256, head=Linear(ops, 256, 32)).fill(weight("Q4_1"))
    ops.get("rms_norm")
    ops.get_cached("paged_attention", 64)
    config = SimpleNamespace(hidden_size=256, intermediate_size=256, activation="silu")
    mlp = MLP(config, ops)
    for part in (mlp.gate, mlp.up, mlp.down):
        part.fill(weight("Q4_1", 256))
    mlp(torch.randn(1, 256))
    exact = {op: spec.exact for op, spec in kernels.specs}
    assert exact == {
        "embedding": False,
        "quant_linear": True,
        "rms_norm": False,
        "paged_attention": False,
        "gated_linear": True,
    }
