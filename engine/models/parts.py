"""The parts that decoders are built of. Each knows its parameters' names and calls operators that were resolved at load.

Shapes: n tokens of a step, h hidden size, H query heads, Hkv KV heads, D head size, f width of the MLP. Activations and
the residual stream have the operators' dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.kv.storage import Caches
from engine.models.operators import Operators
from engine.types import StepInputs
from engine.weights.config import ModelConfig
from engine.weights.loader import Slot
from kernels.ops import Impl, Weight

Parameters = Iterator[tuple[str, Slot]]
Angles = tuple[Tensor, Tensor, Tensor]
"""The step's positions, int64 [n], and cos and sin of all positions, float32 [window, rotary_dim / 2]."""


class Vector:
    """A parameter of one dim, or of more than two, kept in float32; `offset` is added as it is filled."""

    def __init__(self, *shape: int, offset: float = 0.0) -> None:
        self.shape = shape
        self.value: Tensor | None = None
        self._offset = offset

    def fill(self, value: Tensor) -> bool:
        self.value = value + self._offset if self._offset else value
        return self.value is value


class Matrix:
    """A matrix parameter and the operator that uses it, which is resolved when the weight's type is known."""

    def __init__(self, ops: Operators, op: str, n_out: int, n_in: int) -> None:
        self.shape = (n_out, n_in)
        self.weight: Weight | None = None
        """As the operator wants it: the Weight, or what `impl.pack` made of it."""
        self.impl: Impl | None = None
        self._ops = ops
        self._op = op
        self._fn: Callable[..., Tensor] | None = None

    def fill(self, value: Weight, *, same: Matrix | None = None) -> bool:
        """same: a parameter that was filled with this value before, whose packed weight is taken where it can be."""
        self.impl = self._ops.find(self._op, qtype=value.qtype)
        self._fn = self._ops.use(self.impl)
        if same is not None and self.impl.pack is same.impl.pack:
            self.weight = same.weight
        else:
            self.weight = self.impl.pack(value) if self.impl.pack else value
        return self.weight is value


class Linear(Matrix):
    def __init__(self, ops: Operators, n_in: int, n_out: int, *, bias: bool = False) -> None:
        super().__init__(ops, "quant_linear", n_out, n_in)
        self.bias = Vector(n_out) if bias else None

    @property
    def bias_value(self) -> Tensor | None:
        return self.bias and self.bias.value

    def __call__(self, x: Tensor) -> Tensor:
        """[n, n_in] -> [n, n_out]"""
        return self._fn(x, self.weight, self.bias_value)

    def parameters(self, name: str) -> Parameters:
        yield f"{name}.weight", self
        if self.bias:
            yield f"{name}.bias", self.bias


def fused(ops: Operators, op: str, parts: Sequence[Linear]) -> Callable[..., Any] | None:
    """An operator on several filled matrices, if one implementation takes them all as they are; else they are multiplied singly.

    A model file may mix weight types within a layer.
    """
    impls = [ops.find(op, qtype=part.weight.qtype) for part in parts]
    fits = all(
        impl is impls[0] and (impl.source, impl.pack) == (part.impl.source, part.impl.pack)
        for impl, part in zip(impls, parts, strict=True)
    )
    return ops.use(impls[0]) if fits else None


class Linears:
    """Several matrices on the same x, in one call where that can be."""

    def __init__(self, ops: Operators, *parts: Linear) -> None:
        self._ops = ops
        self._parts = parts

    @cached_property
    def _fused(self) -> Callable[[Tensor], tuple[Tensor, ...]] | None:
        fn = fused(self._ops, "quant_linears", self._parts)
        weights, biases = zip(*((part.weight, part.bias_value) for part in self._parts), strict=True)
        return fn and (lambda x: fn(x, weights, biases))

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """[n, n_in] -> [n, n_out] of each part"""
        return self._fused(x) if self._fused else tuple(part(x) for part in self._parts)


class Joined:
    """Matrices on the same x that a checkpoint has as one, rows below rows."""

    def __init__(self, ops: Operators, n_in: int, *sizes: int, bias: bool = False) -> None:
        self.whole = Linear(ops, n_in, sum(sizes), bias=bias)
        self._sizes = sizes

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """[n, n_in] -> [n, size] of each part, views on one result"""
        return self.whole(x).split(self._sizes, -1)


class Embedding(Matrix):
    """Rows of the embedding matrix, times `scale`; fills `head` too, where the output matrix is the same one."""

    def __init__(self, ops: Operators, n_vocab: int, size: int, *, scale: float = 1.0, head: Linear | None = None) -> None:
        super().__init__(ops, "embedding", n_vocab, size)
        self._scale = torch.tensor(scale, dtype=ops.dtype).item()
        self._head = head

    def fill(self, value: Weight) -> bool:
        keeps = super().fill(value)
        return self._head.fill(value, same=self) or keeps if self._head else keeps

    def __call__(self, token_ids: Tensor) -> Tensor:
        """int64 [n] -> [n, h]"""
        return self._fn(token_ids, self.weight, self._ops.dtype, self._scale)


class Norm(Vector):
    """RMS norm; `offset` 1 is for weights that are stored as their distance from 1."""

    def __init__(self, ops: Operators, size: int, eps: float, *, offset: float = 0.0) -> None:
        super().__init__(size, offset=offset)
        self._eps = eps
        self._norm = ops.get("rms_norm")
        self._norm_add = ops.get("rms_norm_add")

    def __call__(self, x: Tensor) -> Tensor:
        """[..., size] -> the same shape."""
        return self._norm(x, self.value, self._eps)

    def add(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual), where no residual yet means that x begins it."""
        if residual is None:
            return self(x), x
        return self._norm_add(x, residual, self.value, self._eps)

    def parameters(self, name: str) -> Parameters:
        yield f"{name}.weight", self


class MLP:
    """down(activation(gate(x)) * up(x))"""

    def __init__(self, config: ModelConfig, ops: Operators, *, bias: bool = False) -> None:
        self.gate = Linear(ops, config.hidden_size, config.intermediate_size, bias=bias)
        self.up = Linear(ops, config.hidden_size, config.intermediate_size, bias=bias)
        self.down = Linear(ops, config.intermediate_size, config.hidden_size, bias=bias)
        self._ops = ops
        self._activation = config.activation

    @cached_property
    def _gated(self) -> Callable[[Tensor], Tensor]:
        gate, up, activation = self.gate, self.up, self._activation  # without self, in which the function stays
        if fn := fused(self._ops, "gated_linear", (gate, up)):
            biases = gate.bias_value, up.bias_value
            return lambda x: fn(x, gate.weight, up.weight, biases, activation)
        activate = self._ops.get(f"{activation}_mul")
        return lambda x: activate(gate(x), up(x))

    def __call__(self, x: Tensor) -> Tensor:
        """[n, h] -> [n, h]"""
        return self.down(self._gated(x))

    def parameters(self, name: str) -> Parameters:
        yield from self.gate.parameters(f"{name}.gate_proj")
        yield from self.up.parameters(f"{name}.up_proj")
        yield from self.down.parameters(f"{name}.down_proj")


class Attention:
    """Grouped-query attention over the paged cache, with rotary positions, and the window of its layer if it has one."""

    def __init__(
        self,
        config: ModelConfig,
        ops: Operators,
        layer: int,
        *,
        bias: bool = False,
        output_bias: bool = False,
        joined: bool = False,
        head_norm: Callable[[], Norm] | None = None,
        row_norm: Callable[[int], Norm] | None = None,
        query_factors: Tensor | None = None,
    ) -> None:
        """joined: the checkpoint has q, k and v as one matrix. head_norm makes the norm of each head of q and k before they are
        turned, row_norm, of a size, that of all heads together. query_factors, float32 [positions]: of each query after that.
        """
        size, n_heads, shape = config.hidden_size, config.n_heads, config.kv_shape(layer)
        q_size, k_size = n_heads * shape.key_dim, shape.n_heads * shape.key_dim
        sizes = q_size, k_size, shape.n_heads * shape.value_dim
        if joined:
            self._qkv = Joined(ops, size, *sizes, bias=bias)
            self._inputs = {"qkv": self._qkv.whole}
        else:
            self.q, self.k, self.v = (Linear(ops, size, n, bias=bias) for n in sizes)
            self._qkv = Linears(ops, self.q, self.k, self.v)
            self._inputs = {"q": self.q, "k": self.k, "v": self.v}
        self.o = Linear(ops, n_heads * shape.value_dim, size, bias=output_bias)
        self.q_norm = self.k_norm = None
        if head_norm:
            self.q_norm, self.k_norm = head_norm(), head_norm()
        elif row_norm:
            self.q_norm, self.k_norm = row_norm(q_size), row_norm(k_size)
        self._norms_rows = row_norm is not None
        self._query_factors = query_factors
        self._scale_rows = ops.get("scale_rows") if query_factors is not None else None
        self.sinks = Vector(config.n_heads) if config.attention_sinks else None
        self._shape = shape
        self._settings = (config.attention_scale, config.windows[layer], config.attn_soft_cap)
        self._chunked = config.chunked_windows and config.windows[layer] > 0
        sizes = {"head_size": shape.key_dim, "value_size": shape.value_dim}
        self._write = ops.get_cached("rope_and_write_kv", **sizes)
        flags = {"window": config.windows[layer] > 0, "chunked": self._chunked, "soft_cap": config.attn_soft_cap > 0}
        self._attend = ops.get_cached("paged_attention", **sizes, **flags)

    def __call__(self, x: Tensor, angles: Angles, inputs: StepInputs, caches: Caches) -> Tensor:
        """[n, h] -> [n, h]; writes the step's keys and values into the caches."""
        return self.o(self.attend(*self.project(x), angles, inputs, caches).flatten(1))

    def project(self, x: Tensor) -> list[Tensor]:
        """[n, h] -> q [n, H, D], k [n, Hkv, D] and v [n, Hkv, Dv]"""
        q, k, v = self._qkv(x)
        if self._norms_rows:
            q, k = self.q_norm(q), self.k_norm(k)
        dims = self._shape.key_dim, self._shape.key_dim, self._shape.value_dim
        return [rows.unflatten(-1, (-1, size)) for rows, size in zip((q, k, v), dims, strict=True)]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, angles: Angles, inputs: StepInputs, caches: Caches) -> Tensor:
        """q [n, H, D] -> [n, H, Dv]"""
        if self.q_norm and not self._norms_rows:
            q, k = self.q_norm(q), self.k_norm(k)
        k_cache, v_cache, scales = caches
        q = self._write(q, k, v, *angles, k_cache, v_cache, inputs.slots, scales)
        if self._scale_rows:
            q = self._scale_rows(q, self._query_factors, angles[0])
        tables = inputs.query_starts, inputs.context_lens, inputs.block_tables
        others = scales, self.sinks and self.sinks.value, self._chunked
        return self._attend(q, k_cache, v_cache, *tables, *self._settings, *others)

    def parameters(self, name: str) -> Parameters:
        for part, matrix in {**self._inputs, "o": self.o}.items():
            yield from matrix.parameters(f"{name}.{part}_proj")
        if self.q_norm:
            yield from self.q_norm.parameters(f"{name}.q_norm")
            yield from self.k_norm.parameters(f"{name}.k_norm")
        if self.sinks:
            yield f"{name}.sinks", self.sinks


class DecoderLayer(Protocol):
    """Takes the last layer's output x apart from the residual it belongs to, so that their sum is fused with a norm."""

    def __call__(
        self, x: Tensor, residual: Tensor | None, angles: Angles, inputs: StepInputs, caches: Caches
    ) -> tuple[Tensor, Tensor]: ...

    def parameters(self, name: str) -> Parameters: ...


class Mixer(Protocol):
    """What lets the tokens of a text know of each other: attention, or a state."""

    def __call__(self, x: Tensor, angles: Angles, inputs: StepInputs, caches: tuple) -> Tensor:
        """[n, h] -> [n, h]; caches: of its layer, written in place."""

    def parameters(self, name: str) -> Parameters: ...


class Block:
    """A decoder layer with a norm before attention, or what is in its place, and one before the MLP."""

    def __init__(
        self,
        mixer: Mixer,
        mlp: MLP,
        norm: Callable[[], Norm],
        *,
        mixer_name: str = "self_attn",
        mlp_norm_name: str = "post_attention_layernorm",
        mlp_name: str = "mlp",
    ) -> None:
        self.mixer = mixer
        self.mlp = mlp
        self.input_norm = norm()
        self.mlp_norm = norm()
        self._names = mixer_name, mlp_norm_name, mlp_name

    def __call__(
        self, x: Tensor, residual: Tensor | None, angles: Angles, inputs: StepInputs, caches: tuple
    ) -> tuple[Tensor, Tensor]:
        x, residual = self.input_norm.add(x, residual)
        x, residual = self.mlp_norm.add(self.mixer(x, angles, inputs, caches), residual)
        return self.mlp(x), residual

    def parameters(self, name: str) -> Parameters:
        mixer_name, mlp_norm_name, mlp_name = self._names
        yield from self.input_norm.parameters(f"{name}.input_layernorm")
        yield from self.mixer.parameters(f"{name}.{mixer_name}")
        yield from self.mlp_norm.parameters(f"{name}.{mlp_norm_name}")
        yield from self.mlp.parameters(f"{name}.{mlp_name}")
