"""Layers that carry a state: gated delta-net and Mamba-2, in the place of attention.

Shapes: n tokens of a step, h hidden size, H heads, K key dims, V dims of a head, C channels of the convolution.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.models.operators import Operators
from engine.models.parts import Angles, Linear, Linears, Norm, Parameters, Vector
from engine.types import StepInputs
from engine.weights.config import ModelConfig

States = tuple[Tensor, Tensor]
"""Of one layer: the convolution's last inputs and the state, as RecurrentConfig.state_shapes has them, for each block."""


class Convolution:
    """Causal, each channel on its own; `activate`: SiLU comes after it."""

    def __init__(self, ops: Operators, n_channels: int, width: int, *, bias: bool, activate: bool = True) -> None:
        self.weight = Vector(n_channels, 1, width)
        self.bias = Vector(n_channels) if bias else None
        self._activate = activate
        self._conv = ops.get("causal_conv")

    def __call__(self, x: Tensor, state: Tensor, where: tuple[Tensor, ...]) -> Tensor:
        """[n, C] -> [n, C]"""
        return self._conv(x, self.weight.value[:, 0], self.bias and self.bias.value, state, *where, self._activate)

    def parameters(self, name: str) -> Parameters:
        yield f"{name}.weight", self.weight
        if self.bias:
            yield f"{name}.bias", self.bias


def where(inputs: StepInputs) -> tuple[Tensor, ...]:
    """The arguments by which operators find each sequence's rows and state."""
    return inputs.query_starts, inputs.context_lens, inputs.block_tables[:, 0]


class DeltaNet:
    """Gated delta-net as Qwen3.5 has it: q, k and v through one convolution, a gate behind the norm of each head."""

    def __init__(self, config: ModelConfig, ops: Operators) -> None:
        size, recurrent = config.hidden_size, config.recurrent
        self._config = recurrent
        n_values = recurrent.n_heads * recurrent.head_dim
        self.qkv = Linear(ops, size, recurrent.conv_channels)
        self.z = Linear(ops, size, n_values)
        self.b = Linear(ops, size, recurrent.n_heads)
        self.a = Linear(ops, size, recurrent.n_heads)
        self.out = Linear(ops, n_values, size)
        self.conv = Convolution(ops, recurrent.conv_channels, recurrent.conv_width, bias=False)
        self.step_bias, self.log_rates = Vector(recurrent.n_heads), Vector(recurrent.n_heads)
        self.norm = Norm(ops, recurrent.head_dim, config.rms_eps)
        self._inputs = Linears(ops, self.qkv, self.z, self.b, self.a)
        self._rule, self._gate = ops.get("delta_rule"), ops.get("silu_mul")

    def __call__(self, x: Tensor, angles: Angles, inputs: StepInputs, states: States) -> Tensor:
        """[n, h] -> [n, h]; the states go on."""
        taps, state = states
        qkv, z, b, a = self._inputs(x)
        sizes = self._config.n_key_heads * self._config.key_dim
        parts = self.conv(qkv, taps, where(inputs)).split((sizes, sizes, z.shape[1]), -1)
        q, k = (part.unflatten(-1, (-1, self._config.key_dim)) for part in parts[:2])
        v = parts[2].unflatten(-1, (-1, self._config.head_dim))
        of_heads = self.log_rates.value, self.step_bias.value
        mixed = self.norm(self._rule(q, k, v, a, b, *of_heads, state, *where(inputs), self._config.tiled))
        return self.out(self._gate(z, mixed.flatten(1)))

    def parameters(self, name: str) -> Parameters:
        for part, linear in (("in_proj_qkv", self.qkv), ("in_proj_z", self.z), ("in_proj_b", self.b), ("in_proj_a", self.a)):
            yield from linear.parameters(f"{name}.{part}")
        yield from self.out.parameters(f"{name}.out_proj")
        yield from self.conv.parameters(f"{name}.conv1d")
        yield from self.norm.parameters(f"{name}.norm")
        yield f"{name}.dt_bias", self.step_bias
        yield f"{name}.A_log", self.log_rates


class Mamba2:
    """Mamba-2: one matrix for gate, convolution and steps; the norm comes behind the gate, for each group of heads alone."""

    def __init__(self, config: ModelConfig, ops: Operators, *, bias: bool, conv_bias: bool) -> None:
        size, recurrent = config.hidden_size, config.recurrent
        self._config = recurrent
        self._n_inner = recurrent.n_heads * recurrent.head_dim
        self.inputs = Linear(ops, size, self._n_inner + recurrent.conv_channels + recurrent.n_heads, bias=bias)
        self.out = Linear(ops, self._n_inner, size, bias=bias)
        self.conv = Convolution(ops, recurrent.conv_channels, recurrent.conv_width, bias=conv_bias)
        self.step_bias, self.log_rates, self.skip = (Vector(recurrent.n_heads) for _ in range(3))
        self.norm_weight = Vector(self._n_inner)
        self._eps = config.rms_eps
        self._ones = torch.ones(self._n_inner // recurrent.n_key_heads, device=ops.device)
        self._scan, self._gate, self._norm, self._mul = map(ops.get, ("state_scan", "silu_mul", "rms_norm", "mul"))

    def __call__(self, x: Tensor, angles: Angles, inputs: StepInputs, states: States) -> Tensor:
        """[n, h] -> [n, h]; the states go on."""
        taps, state = states
        recurrent, groups = self._config, self._config.n_key_heads * self._config.key_dim
        gate, mixed, steps = self.inputs(x).split((self._n_inner, recurrent.conv_channels, recurrent.n_heads), -1)
        values, b, c = self.conv(mixed, taps, where(inputs)).split((self._n_inner, groups, groups), -1)
        b, c = (part.unflatten(-1, (-1, recurrent.key_dim)) for part in (b, c))
        values = values.unflatten(-1, (-1, recurrent.head_dim))
        of_heads = self.log_rates.value, self.step_bias.value, self.skip.value
        out = self._scan(values, steps, b, c, *of_heads, state, *where(inputs))
        gated = self._gate(gate, out.flatten(1))
        if recurrent.n_key_heads == 1:
            return self.out(self._norm(gated, self.norm_weight.value, self._eps))
        normed = self._norm(gated.unflatten(-1, (recurrent.n_key_heads, -1)), self._ones, self._eps).flatten(1)
        return self.out(self._mul(normed, self.norm_weight.value.expand(len(x), -1)))

    def parameters(self, name: str) -> Parameters:
        yield from self.inputs.parameters(f"{name}.in_proj")
        yield from self.out.parameters(f"{name}.out_proj")
        yield from self.conv.parameters(f"{name}.conv1d")
        yield f"{name}.norm.weight", self.norm_weight
        yield f"{name}.dt_bias", self.step_bias
        yield f"{name}.A_log", self.log_rates
        yield f"{name}.D", self.skip
