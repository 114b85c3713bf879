"""Products with packed weights, and rows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.cpu.launch import address, empty, launch, native
from kernels.cpu.support import require, require_shape, unsupported, whole, whole_rows
from kernels.ops import DENSE, QTYPES, SCALED, Impl, OpSpec, Weight


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
    """Reads the whole weight, on all threads."""
    if weight.order is not None or (weight.qtype != "INT4" and weight.zeros is not None):
        raise ValueError(f"{weight.qtype} with zeros, or an order, is not packed yet.")
    data = whole_rows(weight.data)
    row_bytes = data.stride(0) * data.element_size()
    apart: tuple[int, ...] = ()
    if weight.qtype in SCALED:
        scales, zeros = whole(weight.scales), whole(weight.zeros)
        apart = address(scales), address(zeros), weight.group
    return PackedWeight(
        weight.qtype, weight.shape, native.Packed(weight.qtype, *weight.shape, data.data_ptr(), row_bytes, *apart)
    )


def quant_linears(
    x: Tensor, weights: Sequence[PackedWeight], biases: Sequence[Tensor | None], *, exact: bool = False
) -> tuple[Tensor, ...]:
    x = _checked(x, *weights)
    for weight, bias in zip(weights, biases, strict=True):
        _check_bias(weight, bias)
    outs = tuple(empty(len(x), weight.shape[0]) for weight in weights)
    added = [whole(bias) for bias in biases]
    launch(native.Linears, x, x.stride(0), [weight.native for weight in weights], added, list(outs), exact, n_rows=len(x))
    return outs


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
    if spec.qtype not in (None, *_TYPES):
        return f"weights of type {spec.qtype}"
    return unsupported(spec)


def _unsupported_fast(spec: OpSpec) -> str | None:
    if spec.qtype in _FLOATS:
        return f"multiplies integers, which {spec.qtype} does not have"
    if spec.exact:
        return "quantises activations"
    return _unsupported(spec)


_PRODUCTS = (("quant_linear", quant_linear), ("quant_linears", quant_linears), ("gated_linear", gated_linear))
_NEW = ("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4", "TQ1_0", "TQ2_0", "FP4", "E2M1")
_TYPES = tuple(qtype for qtype in QTYPES if qtype not in _NEW)
_FLOATS = (*DENSE, "FP8", "NF4")
_QUICK = tuple(OpSpec(dtype=torch.float32, qtype=qtype) for qtype in _TYPES if qtype not in _FLOATS)
_PLAIN = tuple(OpSpec(dtype=torch.float32, qtype=qtype) for qtype in _FLOATS)
_EXACT = tuple(OpSpec(dtype=torch.float32, qtype=qtype, exact=True) for qtype in _TYPES)

IMPLS = (
    *(Impl(op, "cpp", fn, _unsupported_fast, _QUICK, pack, quantized) for op, fn in _PRODUCTS),
    *(Impl(op, "cpp exact", partial(fn, exact=True), _unsupported, (*_PLAIN, *_EXACT), pack) for op, fn in _PRODUCTS),
    Impl("embedding", "cpp", embedding, _unsupported, (*_PLAIN, *_QUICK), pack),
)
