"""Each operator by itself, from each source: how long a call takes, and which share of the machine's limit that is.

Weights and caches are many, used in turn, so that a call finds them where a decode step would: in memory, not in a core's cache.
Native operators are run from a tape, as a server does, so that Python's part is not in the figures; torch's are called.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from app.bench.limits import Limits
from app.bench.shapes import Shapes
from kernels.conformance import attention_arguments, new_caches
from kernels.conformance_weights import random_weight
from kernels.cpu import launch
from kernels.ops import DENSE, Impl, OpSpec
from kernels.registry import implementations

MOST_COPIES = 1024
KV_BYTES = 64 << 20
"""What all caches of an attention take together."""
ROWS = (1, 4, 16, 128, 512)
CONTEXTS = (512, 4096)
KV_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}
BLOCK_SIZE = 16
BUDGET_S = 0.15
_F32 = torch.float32
PRODUCTS = ("quant_linear", "quant_linears", "gated_linear")
OPS = (*PRODUCTS, "paged_attention", "rms_norm", "rms_norm_add", "silu_mul", "rope_and_write_kv")
"""Operators that have cases; those that draw tokens are measured together, by sampling.py."""
Arguments = Callable[[Impl, int], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """One operator on one size. make(impl, i) are the arguments of the ith of n_copies calls that follow each other."""

    op: str
    what: str
    spec: OpSpec
    n_rows: int
    n_seqs: int
    make: Arguments
    n_copies: int
    n_bytes: int
    """That a call must read from memory."""
    n_ops: int
    """Multiplications and additions."""
    arithmetic: str = "f32"
    """Which peak limits it: int8, f32."""


@dataclass(slots=True)
class Timing:
    """A case from one source."""

    op: str
    what: str
    rows: int
    source: str
    seconds: float
    gb_per_s: float
    gop_per_s: float
    limit: str
    """What limits it: read, int8 or f32."""
    share: float
    """Of that limit: the time that it would take at the limit, over the time that it takes."""
    versus_reference: float | None = field(default=None)


def cases(shapes: Shapes, rows: tuple[int, ...], qtypes: tuple[str, ...]) -> Iterator[Case]:
    """All cases of a model."""
    for qtype in qtypes:
        for op, what, outs, n_in in shapes.products():
            if shapes.fits(qtype, n_in):
                yield from _products(op, f"{qtype} {what}", qtype, outs, n_in, rows, shapes.weight_bytes)
    for name, dtype in KV_TYPES.items():
        for context in CONTEXTS:
            for batch in (((1, context),), ((1, context),) * 8, ((min(512, context), context),)):
                yield _attention(shapes, name, dtype, batch)
    for n in rows:
        yield from _rows(shapes, n)


def sources() -> set[str]:
    """Where the operators come from."""
    return {impl.source for op in OPS for impl in implementations(op)}


def measure(case: Case, limits: Limits | None, threads: int, sources: tuple[str, ...] = ()) -> Iterator[Timing]:
    """The case from each source that can do it, the reference first."""
    reference: float | None = None
    for impl in reversed(implementations(case.op)):
        if impl.supports(case.spec) is not None or (sources and impl.source not in sources):
            continue
        arithmetic = case.arithmetic if impl.source == "cpp" else "f32"
        seconds = _seconds(case, impl)
        reference = seconds if impl.source == "reference" else reference
        limit, share = _share(case, arithmetic, seconds, limits, threads)
        yield Timing(
            case.op,
            case.what,
            case.n_rows,
            impl.source,
            seconds,
            case.n_bytes / seconds * 1e-9,
            case.n_ops / seconds * 1e-9,
            limit,
            share,
            None if reference is None else reference / seconds,
        )


HEADER = (
    f"{'operator':18}{'what':30}{'rows':>5} {'source':10}{'us':>10}{'GB/s':>8}{'GOP/s':>8}{'of limit':>16}{'x reference':>12}"
)


def line(timing: Timing) -> str:
    """The timing under HEADER."""
    t = timing
    share = f"{t.share:.0%} of {t.limit}" if t.limit else ""
    ratio = f"{t.versus_reference:.1f}" if t.versus_reference is not None and t.source != "reference" else ""
    return (
        f"{t.op:18}{t.what:30}{t.rows:>5} {t.source:10}{t.seconds * 1e6:10.1f}{t.gb_per_s:8.2f}{t.gop_per_s:8.1f}"
        f"{share:>16}{ratio:>12}"
    )


def _products(
    op: str, what: str, qtype: str, outs: tuple[int, ...], n_in: int, rows: tuple[int, ...], file_bytes: int
) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(0)
    weights = [random_weight(qtype, n_out, n_in, generator, zeros=qtype == "INT4") for n_out in outs]
    n_bytes = sum(weight.n_bytes for weight in weights)
    n_copies = min(MOST_COPIES, -(-file_bytes // n_bytes))
    copies: dict[tuple[Any, int], list[Any]] = {}

    def copy(impl: Impl, i: int) -> list[Any]:
        if (impl.pack, i) not in copies:
            copies[impl.pack, i] = [impl.pack(weight) if impl.pack else weight.map(Tensor.clone) for weight in weights]
        return copies[impl.pack, i]

    for n in rows:
        x = torch.randn(n, n_in)
        spec = OpSpec(dtype=_F32, qtype=qtype)
        arithmetic = "f32" if qtype in DENSE else "int8"
        n_ops = 2 * n * sum(outs) * n_in

        def make(impl: Impl, i: int, x: Tensor = x) -> tuple[Any, ...]:
            return _product_arguments(op, x, copy(impl, i))

        yield Case(op, what, spec, n, 0, make, n_copies, n_bytes, n_ops, arithmetic)


def _product_arguments(op: str, x: Tensor, weights: list[Any]) -> tuple[Any, ...]:
    if op == "quant_linears":
        return x, weights, [None] * len(weights)
    if op == "gated_linear":
        return x, *weights, (None, None), "silu"
    return x, *weights


def _attention(shapes: Shapes, name: str, dtype: torch.dtype, batch: tuple[tuple[int, int], ...]) -> Case:
    spec = OpSpec(dtype=_F32, kv_dtype=dtype, head_size=shapes.head_size)
    sizes = (shapes.n_heads, shapes.n_kv_heads, BLOCK_SIZE, True)
    n_query, context = batch[0]
    keys = sum(n * c - n * (n - 1) // 2 for n, c in batch)
    head_bytes = shapes.head_size * dtype.itemsize + (_F32.itemsize if dtype == torch.int8 else 0)  # with its scale
    n_bytes = sum(c for _, c in batch) * shapes.n_kv_heads * 2 * head_bytes
    args: list[Any] = []

    def make(_: Impl, i: int) -> tuple[Any, ...]:
        if not args:
            args[:] = attention_arguments(spec, batch, torch.Generator().manual_seed(0), *sizes)
        q, k, v, *rest, scales, sinks, chunked = args
        return q, k.clone(), v.clone(), *rest, scales and tuple(scale.clone() for scale in scales), sinks, chunked

    kind = "decode" if n_query == 1 else "prefill"
    return Case(
        "paged_attention",
        f"{name} {kind}, {len(batch)} x {context}",
        spec,
        sum(n for n, _ in batch),
        len(batch),
        make,
        max(1, KV_BYTES // n_bytes),
        n_bytes,
        4 * keys * shapes.n_heads * shapes.head_size,
    )


def _rows(shapes: Shapes, n: int) -> Iterator[Case]:
    """Operators on activations, which lie in caches: what they read and write is their size, and memory is no limit."""
    plain, h, f = OpSpec(dtype=_F32), shapes.hidden, shapes.mlp
    x, residual, weight = torch.randn(n, h), torch.randn(n, h), torch.randn(h)
    gate, up = torch.randn(n, f), torch.randn(n, f)
    few = 8
    yield Case("rms_norm", f"{h}", plain, n, 0, lambda *_: (x, weight, 1e-5), few, 8 * n * h, 4 * n * h)
    yield Case("rms_norm_add", f"{h}", plain, n, 0, lambda *_: (x, residual, weight, 1e-5), few, 16 * n * h, 5 * n * h)
    yield Case("silu_mul", f"{f}", plain, n, 0, lambda *_: (gate, up), few, 12 * n * f, 20 * n * f)
    d, n_heads, n_kv = shapes.head_size, shapes.n_heads, shapes.n_kv_heads
    spec = OpSpec(dtype=_F32, kv_dtype=torch.float16, head_size=d)
    caches = new_caches(spec, n // BLOCK_SIZE + 1, BLOCK_SIZE, n_kv, by_dims=True)
    heads = [torch.randn(n, k, d) for k in (n_heads, n_kv, n_kv)]
    angles = torch.rand(n, d // 2)
    positions = torch.arange(n)
    args = (*heads, positions, angles.cos(), angles.sin(), *caches, positions)
    n_bytes = n * d * (8 * n_heads + 12 * n_kv)
    yield Case("rope_and_write_kv", f"{n_heads} and {n_kv} heads", spec, n, 0, lambda *_: args, few, n_bytes, 6 * n * d * n_heads)


def _share(case: Case, arithmetic: str, seconds: float, limits: Limits | None, threads: int) -> tuple[str, float]:
    """(what limits it, the share of it that is reached); ("", 0) where no limits are known, or it works in caches."""
    if limits is None or case.op not in (*PRODUCTS, "paged_attention"):
        return "", 0.0
    times = {
        "read": case.n_bytes * 1e-9 / limits.rate("read", threads),
        arithmetic: case.n_ops * 1e-9 / limits.rate(arithmetic, threads),
    }
    limit = max(times, key=lambda what: times[what])
    return limit, times[limit] / seconds


def _seconds(case: Case, impl: Impl) -> float:
    """Of one call; the median over passes through all copies, of which there are as many as fit the budget."""
    with torch.inference_mode():
        run = _runner(case, impl, 1)
        run()
        began = time.perf_counter()
        run()
        first_s = time.perf_counter() - began
        n_copies = max(1, min(case.n_copies, int(BUDGET_S / 3 / first_s)))
        run = _runner(case, impl, n_copies) if n_copies > 1 else run
        passes = []
        stop = time.perf_counter() + BUDGET_S
        while len(passes) < 3 or (time.perf_counter() < stop and len(passes) < 100):
            began = time.perf_counter()
            run()
            passes.append((time.perf_counter() - began) / n_copies)
            if first_s > BUDGET_S:
                break
    return statistics.median(passes)


def _runner(case: Case, impl: Impl, n_copies: int) -> Callable[[], Any]:
    """Calls the operator n_copies times, each time on a copy of its own."""
    arguments = [case.make(impl, i) for i in range(n_copies)]
    if not impl.source.startswith("cpp"):
        return lambda: [impl.fn(*args) for args in arguments]
    calls: list[tuple[type, tuple[Any, ...]]] = []
    with launch.recording(lambda op, args: calls.append((op, args)), torch.empty):
        kept = [impl.fn(*args) for args in arguments]
    tape = launch.native.Tape()
    for op, args in calls:
        tape.append(op(*map(launch.address, args)))

    def run(kept: Any = (kept, arguments, calls)) -> None:  # the tape knows addresses only
        tape.run(case.n_rows, case.n_seqs)

    return run
