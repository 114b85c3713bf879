"""A part of the contract in ops.py: mixtures of experts. Letters and rules are those of that file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from kernels.ops import Weight


@dataclass(frozen=True, slots=True)
class Routing:
    """How the experts of a row are chosen from their logits."""

    n_used: int
    """Experts of a row."""
    scores: str = "softmax"
    """Of an expert: "softmax" over all logits, "sigmoid" of its own, or the logit, of which those of the chosen ones become
    gains by softmax ("chosen") or each by sigmoid ("chosen_sigmoid": many large logits have the same sigmoid in float32)."""
    normalised: bool = False
    """Gains are divided by their sum plus `eps`."""
    eps: float = 0.0
    scale: float = 1.0
    """Factor of the gains."""
    n_groups: int = 1
    """Experts come in so many groups of equal size, in the order of their ids."""
    n_used_groups: int = 1
    """Groups of which experts may be chosen."""
    n_best: int = 2
    """Of a group's experts, so many of the best ones are summed to its score."""


class Route(Protocol):
    """logits [n, E], bias and factors float32 [E] or None -> (ids int32 [n, k], gains float32 [n, k]), k = routing.n_used.

    Chosen are the k experts whose score plus bias is largest, of groups that are left, the largest first and of equals the
    lowest id. A gain is the score without the bias, then what `routing` makes of it, times the expert's factor in the end; sums
    run over the k in their order. NaN counts as the lowest: ids are always distinct and below E.
    """

    def __call__(
        self, logits: Tensor, bias: Tensor | None, routing: Routing, factors: Tensor | None = None
    ) -> tuple[Tensor, Tensor]: ...


class ExpertsGated(Protocol):
    """x [n, h], ids int32 [n, k], gate and up [n_experts * f, h], biases [n_experts * f] or None -> [n, k * f].

    Slot j of a row has activation(x times gate_e transposed + bias_e) * (x times up_e transposed + bias_e) of the expert e =
    ids[row, j], whose rows of the weights are e * f .. (e + 1) * f. `activation` as of gated_linear, or "clipped": with gate at
    most `limit` and up within -limit .. limit, gate * sigmoid(alpha * gate) * (up + 1). With factors, float32 [n, k], the expert
    of slot j is given x * factors[row, j] (Llama 4).
    """

    def __call__(
        self,
        x: Tensor,
        ids: Tensor,
        gate: Weight,
        up: Weight,
        biases: tuple[Tensor | None, Tensor | None],
        n_experts: int,
        activation: str,
        alpha: float = 1.0,
        limit: float = 0.0,
        factors: Tensor | None = None,
    ) -> Tensor: ...


class ExpertsDown(Protocol):
    """inner [n, k * f], ids int32 [n, k], gains float32 [n, k] or None, down [n_experts * h, f], bias [n_experts * h] or None ->
    [n, h]. Without gains each is 1.

    The sum over the slots j, in their order and in float32, of gains[row, j] * (inner's slot j times down_e transposed +
    bias_e), e = ids[row, j].
    """

    def __call__(
        self, inner: Tensor, ids: Tensor, gains: Tensor | None, down: Weight, bias: Tensor | None, n_experts: int
    ) -> Tensor: ...


class AddGated(Protocol):
    """x and y [n, h], gate [n, 1] or None -> [n, h]: x + y * sigmoid(gate), or x + y."""

    def __call__(self, x: Tensor, y: Tensor, gate: Tensor | None) -> Tensor: ...


class Product(Protocol):
    """x and y [n, f] -> [n, f]. mul: x * y; sigmoid_mul: x * sigmoid(y)."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor: ...
