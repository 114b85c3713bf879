"""MLPs of another form than parts.MLP, which has three matrices."""

from __future__ import annotations

from torch import Tensor

from engine.models.operators import Operators
from engine.models.parts import Joined, Linear, Parameters
from engine.weights.config import ModelConfig


class JoinedMLP:
    """down(activation(gate(x)) * up(x)), whose gate and up the checkpoint has as one matrix."""

    def __init__(self, config: ModelConfig, ops: Operators) -> None:
        self.gate_up = Joined(ops, config.hidden_size, config.intermediate_size, config.intermediate_size)
        self.down = Linear(ops, config.intermediate_size, config.hidden_size)
        self._activate = ops.get(f"{config.activation}_mul")

    def __call__(self, x: Tensor) -> Tensor:
        """[n, h] -> [n, h]"""
        return self.down(self._activate(*self.gate_up(x)))

    def parameters(self, name: str) -> Parameters:
        yield from self.gate_up.whole.parameters(f"{name}.gate_up_proj")
        yield from self.down.parameters(f"{name}.down_proj")


class UngatedMLP:
    """down(activation(up(x)))"""

    def __init__(self, config: ModelConfig, ops: Operators, *, bias: bool = False, names: tuple[str, str]) -> None:
        """names: of up and down."""
        self.up = Linear(ops, config.hidden_size, config.intermediate_size, bias=bias)
        self.down = Linear(ops, config.intermediate_size, config.hidden_size, bias=bias)
        self._activate = ops.get(config.activation)
        self._names = names

    def __call__(self, x: Tensor) -> Tensor:
        """[n, h] -> [n, h]"""
        return self.down(self._activate(self.up(x)))

    def parameters(self, name: str) -> Parameters:
        for part, matrix in zip(self._names, (self.up, self.down), strict=True):
            yield from matrix.parameters(f"{name}.{part}")
