"""Every operator written a second time from its contract: in float64 and without any tiling.

The oracle of the reference, which in turn is the oracle of all other kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from kernels.ops import CODES, DENSE, SCALED, Scales, Weight
from tests.kernels import naive_experts, naive_sample


def dense(weight: Weight) -> Tensor:
    """The weight's values, float64 [out, in], as the gguf package dequantises them, or by the formulas of SCALED."""
    if weight.qtype in DENSE:
        return weight.data.double()
    if weight.qtype in SCALED:
        values = torch.from_numpy(_scaled(weight)).double()
        return values if weight.order is None else values[:, weight.order.argsort()]
    kind = gguf.GGMLQuantizationType[weight.qtype]
    return torch.from_numpy(gguf.quants.dequantize(weight.data.numpy(), kind)).double()


def _scaled(weight: Weight) -> np.ndarray:
    """float32 [out, in], rounded once, each column from the bytes that it depends on."""
    column = np.arange(weight.shape[1])
    data = weight.data.view(torch.uint8).numpy()
    nibbles = data[:, column // 2] >> 4 * (column % 2) & 15 if SCALED[weight.qtype][1] == 2 else None
    group = column // (weight.shape[1] // weight.scales.shape[1])
    zeros = 0 if weight.zeros is None else weight.zeros.numpy()[:, group].astype(np.float32)
    if weight.qtype == "INT4":
        numbers = nibbles.astype(np.float32) - (8 if weight.zeros is None else zeros)
    elif weight.qtype == "INT8":
        numbers = data.view(np.int8).astype(np.float32) - zeros
    elif weight.qtype == "FP8":
        exponent, mantissa = data >> 3 & 15, data.astype(np.float64) % 8
        size = np.where(exponent > 0, np.ldexp(8 + mantissa, exponent.astype(int) - 10), np.ldexp(mantissa, -9))
        numbers = np.where(data > 127, -size, size).astype(np.float32)
    else:
        numbers = np.array(CODES[weight.qtype], np.float32)[nibbles]
    return numbers * weight.scales.numpy()[:, group]


def quant_linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    y = np.einsum("ni,oi->no", x.double().numpy(), dense(weight).numpy())
    return torch.from_numpy(y if bias is None else y + bias.double().numpy()).to(x.dtype)


def quant_linears(x: Tensor, weights: Sequence[Weight], biases: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """The weights stacked into one."""
    n_outs = [weight.shape[0] for weight in weights]
    stacked = Weight("F32", (sum(n_outs), x.shape[1]), torch.cat([dense(weight) for weight in weights]).float())
    filled = [torch.zeros(n) if bias is None else bias for n, bias in zip(n_outs, biases, strict=True)]
    return quant_linear(x, stacked, torch.cat(filled)).split(n_outs, 1)


def gated_linear(x: Tensor, gate: Weight, up: Weight, biases: tuple[Tensor | None, Tensor | None], activation: str) -> Tensor:
    gated, raised = quant_linears(x, (gate, up), biases)
    return (silu_mul if activation == "silu" else gelu_tanh_mul)(gated, raised)


def heads_linear(x: Tensor, weight: Tensor, kept: int = 0) -> Tensor:
    out = [torch.cat((x[:, h, :kept].double(), x[:, h, kept:].double() @ weight[h].double()), 1) for h in range(len(weight))]
    return torch.stack(out, 1).to(x.dtype)


def add_scaled(x: Tensor, y: Tensor, factor: float) -> Tensor:
    return ((x.double() + y.double()) * factor).to(x.dtype)


def embedding(ids: Tensor, weight: Weight, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    rows = [dense(weight)[token_id] * scale for token_id in ids.tolist()]
    return torch.stack(rows).to(dtype) if rows else torch.empty(0, weight.shape[1], dtype=dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return (wide / (wide.pow(2).sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt() * weight.double()).to(x.dtype)


def rms_norm_add(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = (x.double() + residual.double()).to(x.dtype)
    return rms_norm(total, weight, eps), total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    wide = x.double()
    spread = wide.var(-1, correction=0, keepdim=True)
    normed = (wide - wide.mean(-1, keepdim=True)) / (spread + eps).sqrt() * weight.double()
    return (normed + (0 if bias is None else bias.double())).to(x.dtype)


def add(x: Tensor, y: Tensor) -> Tensor:
    return (x.double() + y.double()).to(x.dtype)


def scale_rows(x: Tensor, factors: Tensor, positions: Tensor) -> Tensor:
    rows = [row.double() * factors[position].double() for row, position in zip(x, positions.tolist(), strict=True)]
    return torch.stack(rows).to(x.dtype) if rows else x.clone()


def rope_and_write_kv(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor | None,
    slots: Tensor,
    scales: Scales | None = None,
) -> Tensor:
    """A pair of dims is a complex number, which its angle turns."""
    half = cos.shape[-1]
    turn = torch.complex(cos.double(), sin.double())[positions].unsqueeze(1)

    def turned(x: Tensor) -> Tensor:
        pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double()) * turn
        return torch.cat((pairs.real, pairs.imag, x[..., 2 * half :].double()), -1).to(x.dtype)

    if k is None:
        return turned(q)
    rotated = turned(k)
    written = [(k_cache, torch.cat((rotated, v), -1))] if v_cache is None else [(k_cache, rotated), (v_cache, v)]
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            place = divmod(slot, k_cache.shape[1])
            if scales is None:
                for cache, x in written:
                    cache[place] = _narrowed(x[row], cache.dtype)
                continue
            for i, (cache, x) in enumerate(written):
                for head, values in enumerate(x[row].tolist()):
                    scale = max(map(abs, values)) / 127
                    scales[i][place][head] = scale
                    cache[place][head] = torch.tensor([round(value / scale) if scale else 0 for value in values])
    return turned(q)


def _narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as a cache's dtype holds it, or will; E4M3 has four significant bits, and none below 2^-9."""
    if dtype == torch.float8_e4m3fn:
        exponent = np.frexp(x.abs().double().numpy())[1] - 1
        unit = torch.from_numpy(np.exp2(np.maximum(exponent, -6.0) - 3))
        return ((x.double() / unit).round() * unit).clip(-448, 448).to(dtype)
    return x.clip(-65504, 65504) if dtype == torch.float16 else x


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: Scales | None = None,
    sinks: Tensor | None = None,
    chunked: bool = False,
) -> Tensor:
    """One query row at a time, over a Python list of the positions it sees."""
    out = q.new_zeros(*q.shape[:2], v_cache.shape[-1])
    starts, tables = query_starts.tolist(), block_tables.tolist()
    block_size, group = k_cache.shape[1], q.shape[1] // k_cache.shape[2]
    for i, context in enumerate(context_lens.tolist()):
        n_query = starts[i + 1] - starts[i]
        for j in range(n_query):
            position = context - n_query + j
            of_row = position % window if window and chunked else window - 1
            seen = [p for p in range(position + 1) if not window or position - p <= of_row]
            blocks, offsets = [tables[i][p // block_size] for p in seen], [p % block_size for p in seen]
            keys, values = k_cache[blocks, offsets].double(), v_cache[blocks, offsets].double()
            if scales is not None:
                keys, values = (
                    x * of_x[blocks, offsets, :, None].double() for x, of_x in zip((keys, values), scales, strict=True)
                )
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
            row = starts[i] + j
            scores = torch.einsum("hd,phd->hp", q[row].double(), keys) * scale
            if soft_cap:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            most = scores.amax(-1, keepdim=True)
            weights = (scores - most).exp()
            without_key = 0 if sinks is None else (sinks.double()[:, None] - most).exp()
            out[row] = torch.einsum("hp,phd->hd", weights / (weights.sum(-1, keepdim=True) + without_key), values)
    return out


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return _gated(gate, up, lambda x: x * (1 + np.tanh(x / 2)) / 2)


def gelu_tanh_mul(gate: Tensor, up: Tensor) -> Tensor:
    return _gated(gate, up, lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def gelu_tanh(x: Tensor) -> Tensor:
    return gelu_tanh_mul(x, torch.ones_like(x))


def relu_squared(x: Tensor) -> Tensor:
    return torch.where(x > 0, x.double() ** 2, 0.0).to(x.dtype)


def _gated(gate: Tensor, up: Tensor, activation: Callable[[np.ndarray], np.ndarray]) -> Tensor:
    return torch.from_numpy(activation(gate.double().numpy()) * up.double().numpy()).to(gate.dtype)


def copy_blocks(k_cache: Tensor, v_cache: Tensor | None, pairs: Sequence[tuple[int, int]], scales: Scales | None = None) -> None:
    for source, destination in pairs:
        for cache in (k_cache, *(scales or ())[:1]) if v_cache is None else (k_cache, v_cache, *(scales or ())):
            cache[destination] = cache[source]


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, query_starts: Tensor, context_lens: Tensor, state_ids: Tensor,
    activate: bool = True,
) -> Tensor:  # fmt: skip
    """One channel at a time, by numpy's convolution of what came before and what comes."""
    out, w = torch.zeros_like(x), weight.shape[1]
    for i, block in enumerate(state_ids.tolist()):
        rows = slice(int(query_starts[i]), int(query_starts[i + 1]))
        n = rows.stop - rows.start
        for c in range(x.shape[1] if n else 0):
            before = np.zeros(w - 1) if n == int(context_lens[i]) else state[block, c].double().numpy()
            taps = np.concatenate([before, x[rows, c].double().numpy()])
            total = np.convolve(taps, weight[c].double().numpy()[::-1], "valid") + (0.0 if bias is None else float(bias[c]))
            out[rows, c] = torch.from_numpy(total / (1 + np.exp(-total)) if activate else total).to(x.dtype)
            state[block, c] = torch.from_numpy(taps[n:]).float()
    return out


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, log_rates: Tensor, bias: Tensor, state: Tensor,
    query_starts: Tensor, context_lens: Tensor, state_ids: Tensor, tiled: bool = False,
) -> Tensor:  # fmt: skip
    """As the product of matrices (I - beta k k^T) that the rule is, head by head."""

    def unit(row: Tensor) -> Tensor:
        return row.double() / torch.sqrt(row.double().square().sum() + 1e-6)

    def forget(now: Tensor, row: int, h: int, g: int) -> Tensor:
        key = unit(k[row, g])
        beta = 1 / (1 + math.exp(-float(b[row, h])))
        kept = math.exp(-math.exp(float(log_rates[h])) * math.log1p(math.exp(float(a[row, h]) + float(bias[h]))))
        turned = torch.eye(len(key), dtype=torch.float64) - beta * torch.outer(key, key)
        return kept * (turned @ now) + torch.outer(beta * key, v[row, h].double())

    def read(now: Tensor, row: int, h: int, g: int) -> Tensor:
        return unit(q[row, g]) / math.sqrt(q.shape[2]) @ now

    return _scan(v, state, q.shape[1], forget, read, query_starts, context_lens, state_ids, tiled)


def state_scan(
    x: Tensor, steps: Tensor, b: Tensor, c: Tensor, log_rates: Tensor, bias: Tensor, skip: Tensor, state: Tensor,
    query_starts: Tensor, context_lens: Tensor, state_ids: Tensor,
) -> Tensor:  # fmt: skip
    def forget(now: Tensor, row: int, h: int, g: int) -> Tensor:
        step = math.log1p(math.exp(float(steps[row, h]) + float(bias[h])))
        return math.exp(-math.exp(float(log_rates[h])) * step) * now + torch.outer(b[row, g].double(), step * x[row, h].double())

    def read(now: Tensor, row: int, h: int, g: int) -> Tensor:
        return c[row, g].double() @ now + skip[h].double() * x[row, h].double()

    return _scan(x, state, b.shape[1], forget, read, query_starts, context_lens, state_ids)


def _scan(
    values: Tensor, state: Tensor, n_groups: int, forget: Callable[..., Tensor], read: Callable[..., Tensor],
    query_starts: Tensor, context_lens: Tensor, state_ids: Tensor, tiled: bool = False,
) -> Tensor:  # fmt: skip
    out, n_heads = torch.zeros_like(values), values.shape[1]
    for i, block in enumerate(state_ids.tolist()):
        first, last = int(query_starts[i]), int(query_starts[i + 1])
        for h in range(n_heads if last > first else 0):
            now = state[block, h].double()
            if last - first == int(context_lens[i]):
                now = torch.zeros_like(now)
            group = h % n_groups if tiled else h * n_groups // n_heads
            for row in range(first, last):
                now = forget(now, row, h, group)
                out[row, h] = read(now, row, h, group).to(values.dtype)
            state[block, h] = now.float()
    return out


OPERATORS: dict[str, Callable[..., Any]] = {
    fn.__name__: fn
    for fn in (
        quant_linear,
        quant_linears,
        gated_linear,
        heads_linear,
        add_scaled,
        embedding,
        rms_norm,
        rms_norm_add,
        layer_norm,
        add,
        scale_rows,
        rope_and_write_kv,
        paged_attention,
        silu_mul,
        gelu_tanh_mul,
        gelu_tanh,
        relu_squared,
        copy_blocks,
        causal_conv,
        delta_rule,
        state_scan,
        naive_experts.route,
        naive_experts.experts_gated(dense),
        naive_experts.experts_down(dense),
        naive_experts.add_gated,
        naive_experts.mul,
        naive_experts.sigmoid_mul,
        naive_sample.sample,
        naive_sample.penalize,
        naive_sample.logprobs,
        naive_sample.uniform,
    )
}
