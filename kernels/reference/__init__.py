"""Every operator in plain torch, on any device torch has: slow, obviously right, and the oracle of all other kernels."""

from __future__ import annotations

import torch

from kernels.ops import DENSE, QTYPES, Impl, OpSpec
from kernels.reference.activation import gelu_tanh, gelu_tanh_mul, relu_squared, silu_mul
from kernels.reference.attention import paged_attention
from kernels.reference.cache import copy_blocks, rope_and_write_kv
from kernels.reference.experts import add_gated, experts_down, experts_gated, mul, route, sigmoid_mul
from kernels.reference.heads import heads_linear
from kernels.reference.linear import embedding, gated_linear, quant_linear, quant_linears
from kernels.reference.norm import layer_norm, rms_norm, rms_norm_add
from kernels.reference.recurrent import causal_conv, delta_rule, state_scan
from kernels.reference.rows import add, scale_rows
from kernels.reference.sample import logprobs, penalize, sample
from kernels.reference.sums import add_scaled
from kernels.reference.uniform import uniform

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_KV_TYPES = (*_FLOATS, torch.float8_e4m3fn, torch.int8)


def _supports(spec: OpSpec) -> str | None:
    if spec.dtype not in (None, *_FLOATS):
        return f"activations of {spec.dtype}"
    if spec.kv_dtype not in (None, *_KV_TYPES):
        return f"KV cache of {spec.kv_dtype}"
    if spec.qtype not in (None, *QTYPES):
        return f"weights of type {spec.qtype}"
    return None


_PLAIN = tuple(OpSpec(dtype=dtype) for dtype in _FLOATS)
_MATRICES = tuple(OpSpec(dtype=dtype, qtype=qtype) for dtype in _FLOATS for qtype in QTYPES)
_CACHES = tuple(
    OpSpec(dtype=torch.float32, kv_dtype=kv, head_size=head, value_size=values)
    for kv in _KV_TYPES
    for head, values in ((64, None), (48, 32))
)
_ATTENTION = (
    *(OpSpec(dtype=torch.float32, kv_dtype=kv, head_size=head) for kv in _KV_TYPES for head in (64, 80, 128, 256)),
    *(OpSpec(dtype=torch.float32, kv_dtype=kv, head_size=48, value_size=32) for kv in _KV_TYPES),
    *(
        OpSpec(dtype=torch.float32, kv_dtype=kv, head_size=64, window=window, soft_cap=cap)
        for kv in (torch.float32, torch.int8)
        for window, cap in ((True, False), (False, True), (True, True))
    ),
    *(OpSpec(dtype=torch.float32, kv_dtype=kv, head_size=64, window=True, chunked=True) for kv in (torch.float32, torch.int8)),
)

IMPLS = tuple(
    Impl(op, "reference", fn, _supports, specs)
    for op, fn, specs in (
        ("quant_linear", quant_linear, _MATRICES),
        ("quant_linears", quant_linears, _MATRICES),
        ("gated_linear", gated_linear, _MATRICES),
        ("heads_linear", heads_linear, tuple(OpSpec(dtype=dtype, qtype=qtype) for dtype in _FLOATS for qtype in DENSE)),
        ("route", route, _PLAIN),
        ("experts_gated", experts_gated, _MATRICES),
        ("experts_down", experts_down, _MATRICES),
        ("add_gated", add_gated, _PLAIN),
        ("mul", mul, _PLAIN),
        ("sigmoid_mul", sigmoid_mul, _PLAIN),
        ("add_scaled", add_scaled, _PLAIN),
        ("embedding", embedding, _MATRICES),
        ("rms_norm", rms_norm, _PLAIN),
        ("rms_norm_add", rms_norm_add, _PLAIN),
        ("layer_norm", layer_norm, _PLAIN),
        ("add", add, _PLAIN),
        ("scale_rows", scale_rows, _PLAIN),
        ("rope_and_write_kv", rope_and_write_kv, _CACHES),
        ("paged_attention", paged_attention, _ATTENTION),
        ("causal_conv", causal_conv, _PLAIN),
        ("delta_rule", delta_rule, _PLAIN),
        ("state_scan", state_scan, _PLAIN),
        ("silu_mul", silu_mul, _PLAIN),
        ("gelu_tanh_mul", gelu_tanh_mul, _PLAIN),
        ("gelu_tanh", gelu_tanh, _PLAIN),
        ("relu_squared", relu_squared, _PLAIN),
        ("copy_blocks", copy_blocks, _CACHES),
        ("sample", sample, (OpSpec(dtype=torch.float32),)),
        ("penalize", penalize, (OpSpec(dtype=torch.float32),)),
        ("logprobs", logprobs, (OpSpec(dtype=torch.float32),)),
        ("uniform", uniform, (OpSpec(),)),
    )
)
