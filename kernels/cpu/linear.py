"""Products with packed weights, and rows of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.cpu.launch import address, empty, launch, native
from kernels.cpu.rows import gelu_tanh_mul, silu_mul
from kernels.cpu.support import require, require_shape, unsupported, whole, whole_rows
from kernels.ops import BLOCKS, DENSE, QTYPES, SCALED, Impl, OpSpec, Weight
from kernels.reference.grids import CODED

_CODED_AT_ONCE = 1 << 20
"""Values, so that what is worked with stays in the caches."""
_MOST_ZERO = 128
"""Of INT8, in magnitude."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A Weight in the order in which the native products read it; the Weight's own data is not needed any more."""

    qtype: str
    shape: tuple[int, int]
    native: Any = field(repr=False)

    @property
    def n_bytes(self) -> int:
        return self.native.n_bytes


def pack(weight: Weight) -> PackedWeight:
    """Reads the whole weight, on all threads. ValueError for zero points and orders that are not as Weight says."""
    data = _codes(weight) if weight.qtype in CODED else whole_rows(weight.data)
    row_bytes = data.stride(0) * data.element_size()
    apart: tuple[int, ...] = ()
    if weight.qtype in SCALED:
        scales, zeros, order = whole(weight.scales), whole(weight.zeros), whole(weight.order)
        if zeros is not None and zeros.dtype == torch.int16 and zeros.abs().amax() > _MOST_ZERO:
            raise ValueError(f"Zero points of {weight.qtype} are -{_MOST_ZERO} to {_MOST_ZERO}, not {zeros.abs().amax()}.")
        apart = address(scales), address(zeros), weight.group, address(order)
    return PackedWeight(
        weight.qtype, weight.shape, native.Packed(weight.qtype, *weight.shape, data.data_ptr(), row_bytes, *apart)
    )


def _codes(weight: Weight) -> Tensor:
    """What is packed of a type whose file has places of a grid: for each 256 values d, 16 scales, and a byte for each code."""
    n_out = weight.shape[0]
    blocks = torch.empty(n_out, weight.shape[1] // 256, 2 + 16 + 256, dtype=torch.uint8)
    n_rows = max(1, _CODED_AT_ONCE // weight.shape[1])
    for start in range(0, n_out, n_rows):
        part = weight.data[start : start + n_rows].reshape(-1, BLOCKS[weight.qtype][1])
        codes, scales, d = CODED[weight.qtype].unpack(part)
        torch.cat((d.view(torch.uint8), scales, codes), 1, out=blocks[start : start + n_rows].view(-1, 2 + 16 + 256))
    return blocks.flatten(1)


def quant_linears(
    x: Tensor, weights: Sequence[PackedWeight], biases: Sequence[Tensor | None], *, exact: bool = False
) -> tuple[Tensor, ...]:
    x = _checked(x, *weights)
    for weight, bias in zip(weights, biases, strict=True):
        _check_bias(weight, bias)
    outs = tuple(empty(len(x), weight.shape[0]) for weight in weights)
    added = [whole(bias) for bias in biases]
    for part in _of_one_order(weights):
        packed, to_add, to = ([values[i] for i in part] for values in ([weight.native for weight in weights], added, outs))
        launch(native.Linears, x, x.stride(0), packed, to_add, to, exact, n_rows=len(x))
    return outs


def _of_one_order(weights: Sequence[PackedWeight]) -> list[list[int]]:
    """Places of the weights, those together that x is put into one order for."""
    parts: list[list[int]] = []
    for i, weight in enumerate(weights):
        part = next((part for part in parts if weight.native.same_order(weights[part[0]].native)), None)
        if part is None:
            parts.append([i])
        else:
            part.append(i)
    return parts


def quant_linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None, *, exact: bool = False) -> Tensor:
    return quant_linears(x, (weight,), (bias,), exact=exact)[0]


def gated_linear(
    x: Tensor,
    gate: PackedWeight,
    up: PackedWeight,
    biases: tuple[Tensor | None, Tensor | None],
    activation: str,
    *,
    exact: bool = False,
) -> Tensor:
    x = _checked(x, gate, up)
    gelu = {"silu": False, "gelu_tanh": True}[activation]
    if gate.shape != up.shape:
        raise ValueError(f"gate is of shape {gate.shape}, up of {up.shape}.")
    for weight, bias in zip((gate, up), biases, strict=True):
        _check_bias(weight, bias)
    if not gate.native.same_order(up.native):
        return (gelu_tanh_mul if gelu else silu_mul)(*quant_linears(x, (gate, up), biases, exact=exact))
    out = empty(len(x), gate.shape[0])
    added = (whole(bias) for bias in biases)
    launch(native.GatedLinear, x, x.stride(0), gate.native, up.native, *added, gelu, out, exact, n_rows=len(x))
    return out


def embedding(ids: Tensor, weight: PackedWeight, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    if dtype != torch.float32:
        raise ValueError(f"Native rows are float32, not {dtype}.")
    require(torch.int64, ids=ids)
    out = empty(len(ids), weight.shape[1])
    launch(native.Embedding, out, whole(ids), weight.native, scale, n_rows=len(ids))
    return out


def _check_bias(weight: PackedWeight, bias: Tensor | None) -> None:
    require(torch.float32, bias=bias)
    require_shape((weight.shape[0],), bias=bias)


def _checked(x: Tensor, *weights: PackedWeight) -> Tensor:
    require(torch.float32, x=x)
    for weight in weights:
        if weight.shape[1] != x.shape[1]:
            raise ValueError(f"Rows of {x.shape[1]} values do not fit a weight of shape {weight.shape}.")
    return whole_rows(x)


def quantized(x: Tensor) -> Tensor:
    """x [n, in] as the fast products see it: in blocks of 32, whole multiples of a 127th of the block's largest value."""
    blocks = x.unflatten(1, (-1, 32))
    largest = blocks.abs().amax(-1, keepdim=True)
    integers = torch.round(blocks * torch.where(largest > 0, 127.0 / largest, 0.0))
    return (integers * (largest / 127.0)).flatten(1)


def _unsupported(spec: OpSpec) -> str | None:
    if spec.qtype not in (None, *QTYPES):
        return f"weights of type {spec.qtype}"
    return unsupported(spec)


def _unsupported_fast(spec: OpSpec) -> str | None:
    if spec.qtype in _FLOATS:
        return f"multiplies integers, which {spec.qtype} does not have"
    if spec.exact:
        return "quantises activations"
    return _unsupported(spec)


_PRODUCTS = (("quant_linear", quant_linear), ("quant_linears", quant_linears), ("gated_linear", gated_linear))
_FLOATS = (*DENSE, "FP8", "NF4", "FP4")
_QUICK = tuple(OpSpec(dtype=torch.float32, qtype=qtype) for qtype in QTYPES if qtype not in _FLOATS)
_PLAIN = tuple(OpSpec(dtype=torch.float32, qtype=qtype) for qtype in _FLOATS)
_EXACT = tuple(OpSpec(dtype=torch.float32, qtype=qtype, exact=True) for qtype in QTYPES)


def products(op: str, fn: Callable[..., Any], exact: Callable[..., Any]) -> tuple[Impl, ...]:
    """The implementations of an operator on packed weights: one that quantises activations, and one that does not."""
    return (
        Impl(op, "cpp", fn, _unsupported_fast, _QUICK, pack, quantized),
        Impl(op, "cpp exact", exact, _unsupported, (*_PLAIN, *_EXACT), pack),
    )


IMPLS = (
    *(impl for op, fn in _PRODUCTS for impl in products(op, fn, partial(fn, exact=True))),
    Impl("embedding", "cpp", embedding, _unsupported, (*_PLAIN, *_QUICK), pack),
)
