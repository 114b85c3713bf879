"""Mixture of experts in the place of an MLP.

Shapes: n tokens of a step, h hidden size, E experts, k of which work on a token, f width of an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor

from engine.models.operators import Operators
from engine.models.parts import MLP, Linear, Matrix, Parameters, Vector, fused
from engine.weights.config import ExpertsConfig, ModelConfig


class Stack(Matrix):
    """A matrix of all experts, one behind the other."""

    def __init__(self, ops: Operators, op: str, n_experts: int, n_in: int, n_out: int, *, bias: bool) -> None:
        super().__init__(ops, op, n_experts * n_out, n_in)
        self.bias = Vector(n_experts * n_out) if bias else None

    @property
    def bias_value(self) -> Tensor | None:
        return self.bias and self.bias.value

    def __call__(self, *args: Any) -> Tensor:
        return self._fn(*args)

    def parameters(self, name: str) -> Parameters:
        yield f"{name}.weight", self
        if self.bias:
            yield f"{name}.bias", self.bias


class Experts:
    """The sum over a token's experts of gain * down(activation(gate(x)) * up(x)); or without the gain, but of x times it."""

    def __init__(self, config: ModelConfig, ops: Operators) -> None:
        experts, size = config.experts, config.hidden_size
        self._ops, self._n = ops, experts.n_experts
        self._activation = experts.activation or config.activation, experts.alpha, experts.limit
        self._gains_first = experts.gains_first
        gated = {"ops": ops, "op": "experts_gated", "n_experts": self._n, "bias": experts.bias}
        self.gate = Stack(**gated, n_in=size, n_out=experts.width)
        self.up = Stack(**gated, n_in=size, n_out=experts.width)
        self.down = Stack(ops, "experts_down", self._n, experts.width, size, bias=experts.bias)

    @cached_property
    def _gated(self) -> Callable[..., Tensor]:
        if fn := fused(self._ops, "experts_gated", (self.gate, self.up)):
            return fn
        # One of the two is of a type whose products are in float32 anyhow, and that implementation takes every type.
        exact = replace(self._ops, exact=True)
        impls = [exact.find("experts_gated", qtype=part.weight.qtype) for part in (self.gate, self.up)]
        assert impls[0] is impls[1]
        return self._ops.use(impls[0])

    def __call__(self, x: Tensor, ids: Tensor, gains: Tensor) -> Tensor:
        """[n, h], ids int32 and gains float32 [n, k] -> [n, h]"""
        biases = self.gate.bias_value, self.up.bias_value
        before, after = (gains, None) if self._gains_first else (None, gains)
        inner = self._gated(x, ids, self.gate.weight, self.up.weight, biases, self._n, *self._activation, before)
        return self.down(inner, ids, after, self.down.weight, self.down.bias_value, self._n)

    def parameters(self, name: str) -> Parameters:
        for part in ("gate", "up", "down"):
            yield from getattr(self, part).parameters(f"{name}.{part}_proj")


class Router:
    """Which experts a token goes to."""

    def __init__(self, config: ModelConfig, ops: Operators) -> None:
        experts = config.experts
        self._routing = experts.routing
        self.matrix = Linear(ops, config.hidden_size, experts.n_experts, bias=experts.bias)
        self.choice_bias = Vector(experts.n_experts) if experts.choice_bias else None
        self._route = ops.get("route")

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[n, h] -> ids int32 [n, k], gains float32 [n, k]"""
        return self._route(self.matrix(x), self.choice_bias and self.choice_bias.value, self._routing)

    def parameters(self, name: str) -> Parameters:
        yield from self.matrix.parameters(name)
        if self.choice_bias:
            yield f"{name}.e_score_correction_bias", self.choice_bias


class SparseMLP:
    """Experts, and an MLP beside them that all tokens go through, where the model has one."""

    def __init__(self, config: ModelConfig, ops: Operators) -> None:
        experts: ExpertsConfig = config.experts
        self.router, self.experts = Router(config, ops), Experts(config, ops)
        shared = replace(config, intermediate_size=experts.shared_width)
        self.shared = MLP(shared, ops) if experts.shared_width else None
        self.shared_gate = Linear(ops, config.hidden_size, 1) if experts.shared_gate else None
        self._add = ops.get("add_gated") if self.shared else None

    def __call__(self, x: Tensor) -> Tensor:
        """[n, h] -> [n, h]"""
        out = self.experts(x, *self.router(x))
        if self.shared is None:
            return out
        return self._add(out, self.shared(x), self.shared_gate and self.shared_gate(x))

    def parameters(self, name: str) -> Parameters:
        yield from self.router.parameters(f"{name}.gate")
        yield from self.experts.parameters(f"{name}.experts")
        if self.shared:
            yield from self.shared.parameters(f"{name}.shared_expert")
        if self.shared_gate:
            yield from self.shared_gate.parameters(f"{name}.shared_expert_gate")


def feed_forward(config: ModelConfig, ops: Operators, layer: int) -> MLP | SparseMLP:
    """What the layer has: an MLP, or experts."""
    is_sparse = config.experts is not None and layer in config.experts.layers
    return SparseMLP(config, ops) if is_sparse else MLP(config, ops, bias=config.mlp_bias)
