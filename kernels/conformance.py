"""Every implementation's declared specs against the reference, on inputs chosen to hurt.

Ragged batches, contexts of 0 and 1, block edges, padding rows, caches whose unused parts are NaN (in int8: have scales that
are), and offsets above 2^31.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, product
from typing import Any

import torch
from torch import Tensor

from kernels import conformance_experts, conformance_heads, conformance_recurrent, conformance_rows, conformance_sample
from kernels.conformance_caches import ends_keys, new_caches, new_scales, set_random
from kernels.conformance_difference import difference
from kernels.conformance_weights import random_weight
from kernels.ops import BLOCKS, GROUP_UNIT, SCALED, Impl, OpSpec, Scales, Weight
from kernels.registry import implementations

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Case:
    """make() gives the same fresh arguments each time; outputs(args, result) is what must agree."""

    name: str
    make: Callable[[], tuple[Any, ...]]
    outputs: Callable[[tuple[Any, ...], Any], tuple[Tensor, ...]]


def check(impl: Impl, oracle: Callable[..., Any] | None = None) -> list[str]:
    """Run all cases of all declared specs; one line for each disagreement, none when all is well.

    The reference is the oracle of every other implementation, and needs one of its own, which gives the same dtypes:
    ValueError for one that would be compared with itself.
    """
    if oracle is None:
        oracle = next(known.fn for known in implementations(impl.op) if known.source == "reference")
    if oracle is impl.fn:
        raise ValueError(f"{impl.op} from {impl.source} cannot be its own oracle.")
    failures = []
    for spec in impl.specs:
        reason = impl.supports(spec)
        if reason is not None:
            failures.append(f"{impl.op} from {impl.source} ({spec}): declared, but not supported: {reason}")
            continue
        for case in cases(impl.op, spec):
            wanted = _run(oracle, case, _rounded, impl.rounds)
            for i, (got, want) in enumerate(zip(_run(impl.fn, case, _packed, impl.pack), wanted, strict=True)):
                problem = difference(got, want)
                if problem:
                    failures.append(f"{impl.op} from {impl.source} ({spec}), {case.name}, output {i}: {problem}")
    return failures


def _run(fn: Callable[..., Any], case: Case, change: Callable[..., Any], how: Callable[..., Any] | None) -> tuple[Tensor, ...]:
    args = case.make()
    return case.outputs(args, fn(*(change(args, how) if how else args)))


def _rounded(args: tuple[Any, ...], rounds: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    """Arguments of a product, whose first one is x and whose weights are of one order: in this order x is rounded."""
    x, order = (
        args[0],
        next(
            weight.order
            for arg in args[1:]
            for weight in (arg if isinstance(arg, tuple) else (arg,))
            if isinstance(weight, Weight)
        ),
    )
    if order is None:
        return rounds(x), *args[1:]
    return torch.empty_like(x).index_copy_(1, order.long(), rounds(x[:, order])), *args[1:]


def _packed(value: Any, pack: Callable[[Weight], Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_packed(item, pack) for item in value)
    return pack(value) if isinstance(value, Weight) else value


def cases(op: str, spec: OpSpec) -> Iterator[Case]:
    """The cases of an operator for one spec."""
    return _CASES[op](spec)


def _to(device: str, *values: Any) -> tuple[Any, ...]:
    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        if isinstance(value, Weight):
            return value.map(moved)
        return value.to(device) if isinstance(value, Tensor) else value

    return tuple(moved(value) for value in values)


def _case(spec: OpSpec, name: str, build: Callable[[torch.Generator], tuple[Any, ...]], *written: int) -> Case:
    """A case whose outputs are the results and the arguments at the positions `written`."""

    def make() -> tuple[Any, ...]:
        return _to(spec.device, *build(torch.Generator().manual_seed(len(name))))

    def outputs(args: tuple[Any, ...], result: Any) -> tuple[Tensor, ...]:
        return tuple(tensor for value in (result, *(args[i] for i in written)) for tensor in _tensors(value))

    return Case(name, make, outputs)


def _tensors(value: Tensor | tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _groups(qtype: str, n_in: int) -> tuple[int | None, ...]:
    """Groups that a row of a type in SCALED may have, the whole row among them; None alone for other types."""
    if qtype not in SCALED:
        return (None,)
    sizes = (16, 32, 48, 64, 96, 128, 160)
    return (*(size for size in sizes if n_in % size == 0 and size % GROUP_UNIT[qtype] == 0), n_in)


def _odd(qtype: str, *sizes: Any) -> tuple[Any, ...]:
    """Sizes whose rows are whole blocks of 32 and not of 256."""
    return () if qtype in BLOCKS and BLOCKS[qtype][0] > 32 else sizes


def _linear_cases(spec: OpSpec) -> Iterator[Case]:
    sizes = ((0, 5, 256), (1, 7, 768), (3, 33, 256), (17, 256, 1536), (65, 40, 256), (19, 33, 1280))
    sizes += _odd(spec.qtype, (1, 33, 480), (9, 18, 480), (2, 16, 320), (40, 35, 96), (19, 40, 576), (13, 35, 896))
    for (n, n_out, n_in), group in ((size, group) for size in sizes for group in _groups(spec.qtype, size[2])):

        def build(
            g: torch.Generator, n: int = n, n_out: int = n_out, n_in: int = n_in, group: int | None = group
        ) -> tuple[Any, ...]:
            x = torch.randn(n, n_in, generator=g).to(spec.dtype)
            bias = torch.randn(n_out, generator=g).to(spec.dtype) if n % 2 else None
            return x, random_weight(spec.qtype, n_out, n_in, g, group, zeros=n not in (3, 19), order=n in (1, 9, 17)), bias

        yield _case(spec, f"{n} rows, {n_out} x {n_in}{f' in groups of {group}' if group else ''}", build)


def _linears_cases(spec: OpSpec) -> Iterator[Case]:
    sizes = ((0, (5, 3), 256), (1, (64, 16, 17), 768), (7, (33, 5), 256), (40, (16, 16), 512))
    sizes += _odd(spec.qtype, (5, (17, 40, 16, 3), 480))
    for n, n_outs, n_in in sizes:

        def build(g: torch.Generator, n: int = n, n_outs: tuple[int, ...] = n_outs, n_in: int = n_in) -> tuple[Any, ...]:
            x = torch.randn(n, n_in, generator=g).to(spec.dtype)
            groups = cycle(_groups(spec.qtype, n_in))
            weights = tuple(random_weight(spec.qtype, n_out, n_in, g, next(groups), order=n == 7) for n_out in n_outs)
            weights = tuple(replace(weight, order=weights[0].order) for weight in weights)
            return x, weights, tuple(torch.randn(n_out, generator=g).to(spec.dtype) if n % 2 else None for n_out in n_outs)

        yield _case(spec, f"{n} rows, {n_outs} x {n_in}", build)


def _gated_cases(spec: OpSpec) -> Iterator[Case]:
    for n, n_out, n_in, activation in (
        (0, 5, 256, "silu"),
        (1, 39, 768, "silu"),
        (6, 64, 256, "gelu_tanh"),
        (35, 17, 256, "silu"),
        *_odd(spec.qtype, (5, 18, 480, "silu"), (40, 18, 320, "silu"), (18, 18, 896, "silu")),
    ):

        def build(
            g: torch.Generator, n: int = n, n_out: int = n_out, n_in: int = n_in, activation: str = activation
        ) -> tuple[Any, ...]:
            x = torch.randn(n, n_in, generator=g).to(spec.dtype)
            groups = cycle(_groups(spec.qtype, n_in))
            gate, up = (random_weight(spec.qtype, n_out, n_in, g, next(groups), order=n in (1, 35)) for _ in range(2))
            up = replace(up, order=gate.order)
            biases = tuple(torch.randn(n_out, generator=g).to(spec.dtype) if n % 2 else None for _ in range(2))
            return x, gate, up, biases, activation

        yield _case(spec, f"{n} rows, {n_out} x {n_in}, {activation}", build)


def _embedding_cases(spec: OpSpec) -> Iterator[Case]:
    sizes = (512, *_odd(spec.qtype, 480, 320))
    rows = ([], [0], [28, 0, 7, 7, 28])
    for ids, (n_in, group) in product(rows, ((size, group) for size in sizes for group in _groups(spec.qtype, size))):

        def build(g: torch.Generator, ids: list[int] = ids, n_in: int = n_in, group: int | None = group) -> tuple[Any, ...]:
            weight = random_weight(spec.qtype, 29, n_in, g, group, zeros=ids != [0])
            return torch.tensor(ids, dtype=torch.int64), weight, spec.dtype, 3.5 if ids == [0] else 1.0

        yield _case(spec, f"rows {ids} of {n_in}{f' in groups of {group}' if group else ''}", build)


def _norm_cases(spec: OpSpec) -> Iterator[Case]:
    for shape in ((1, 576), (5, 2048), (0, 64), (7, 3, 64), (2, 1, 80)):

        def build(g: torch.Generator, shape: tuple[int, ...] = shape) -> tuple[Any, ...]:
            x = torch.randn(shape, generator=g)
            x[:1] *= 100
            if len(x) > 1:
                x[-1] = 0
            return x.to(spec.dtype), torch.randn(shape[-1], generator=g), 1e-6

        yield _case(spec, f"shape {shape}", build)


def _norm_add_cases(spec: OpSpec) -> Iterator[Case]:
    for n, h in ((1, 576), (0, 64), (9, 640)):

        def build(g: torch.Generator, n: int = n, h: int = h) -> tuple[Any, ...]:
            x, residual = torch.randn(2, n, h, generator=g).to(spec.dtype).unbind()
            return x, residual, torch.randn(h, generator=g), 1e-5

        yield _case(spec, f"{n} x {h}", build)


def _activation_cases(spec: OpSpec) -> Iterator[Case]:
    for n, f in ((0, 8), (1, 1536), (5, 33)):

        def build(g: torch.Generator, n: int = n, f: int = f) -> tuple[Any, ...]:
            gate, up = (torch.randn(2, n, f, generator=g) * 30).to(spec.dtype).unbind()
            return gate, up

        yield _case(spec, f"{n} x {f}", build)


def _rope_cases(spec: OpSpec) -> Iterator[Case]:
    d, d_v = spec.head_size, spec.value_size or spec.head_size
    for n, n_heads, n_kv_heads, rotary, by_dims in (
        (1, 3, 1, d, True),
        (5, 4, 4, d - d_v or d, False),
        (7, 9, 3, d // 4 * 2, True),
        (0, 2, 1, d, True),
        (70, 4, 2, d, True),
        (6, 4, 2, 0, False),
        (8, 4, 2, d, True),
    ):

        def build(
            g: torch.Generator,
            n: int = n,
            n_heads: int = n_heads,
            n_kv_heads: int = n_kv_heads,
            rotary: int = rotary,
            by_dims: bool = by_dims,
        ) -> tuple[Any, ...]:
            angles = torch.rand(50, rotary // 2, generator=g) * 1000
            positions = torch.randint(0, 50, (n,), generator=g)
            # Slices of one product, as a fused projection leaves them: rows are further apart than they are long.
            heads = torch.randn(n, n_heads + 2 * n_kv_heads, d, generator=g).to(spec.dtype)
            q, k, v = heads.split((n_heads, n_kv_heads, n_kv_heads), 1)
            ends = ends_keys(spec, by_dims=by_dims)
            v, k = v[..., :d_v].contiguous(), k[..., : d - d_v].contiguous() if ends else k
            if n > 1:
                v[0, -1] = 0
            if n == 8 and spec.dtype == torch.float32:
                for x in (q, k, v):
                    x *= 1e5  # beyond float16 and E4M3
            size = 64 if n == 8 else BLOCK_SIZE
            k_cache, v_cache = new_caches(spec, 6, size, n_kv_heads, by_dims=by_dims)
            scales = new_scales(spec, 6, size, n_kv_heads, by_dims=by_dims)
            slots = torch.randperm(6 * size, generator=g)[:n]
            slots[1::3] = -1
            return q, k, v, positions, angles.cos(), angles.sin(), k_cache, None if ends else v_cache, slots, scales

        yield _case(spec, f"{n} rows, {n_heads} and {n_kv_heads} heads, {rotary} of {d} dims", build, 6, 7, 9)
    yield _case(spec, "no keys", lambda g: _rope_without_keys(spec, g), 6, 7, 9)
    if _is_far(spec):
        yield from (_far_case(spec, _far_rope, (6, 7, 9), by_dims=by_dims) for by_dims in (False, True))


def _rope_without_keys(spec: OpSpec, g: torch.Generator) -> tuple[Any, ...]:
    q, angles = torch.randn(5, 4, spec.head_size, generator=g).to(spec.dtype), torch.rand(5, spec.head_size // 2, generator=g)
    caches, scales = (new(spec, 3, BLOCK_SIZE, 2, by_dims=True) for new in (new_caches, new_scales))
    return q, None, None, torch.arange(5), angles.cos(), angles.sin(), *caches, torch.arange(5), scales


def _far_rope(spec: OpSpec, g: torch.Generator, *, by_dims: bool) -> tuple[Any, ...]:
    q, k, v = torch.randn(5, 8, spec.head_size, generator=g).to(spec.dtype).split((4, 2, 2), 1)
    angles = torch.rand(5, spec.head_size // 2, generator=g)
    caches, scales = _far_caches(spec, g, by_dims=by_dims)
    near = torch.tensor([0, 17, -1, 95, 40])
    slots = torch.where(near < 0, near, near + _FAR * BLOCK_SIZE)
    return q, k, v, torch.arange(5), angles.cos(), angles.sin(), *caches, slots, scales


def _copy_cases(spec: OpSpec) -> Iterator[Case]:
    for pairs, by_dims in (((), False), (((0, 5),), True), (((3, 1), (4, 2), (3, 0)), False), (((3, 1), (4, 2), (3, 0)), True)):

        def build(g: torch.Generator, pairs: tuple[tuple[int, int], ...] = pairs, by_dims: bool = by_dims) -> tuple[Any, ...]:
            size = 64 if by_dims else BLOCK_SIZE
            caches = new_caches(spec, 6, size, 2, by_dims=by_dims)
            scales = new_scales(spec, 6, size, 2, by_dims=by_dims)
            set_random(caches, scales, (torch.arange(6),), g)
            k_cache, v_cache = caches
            return k_cache, None if ends_keys(spec, by_dims=by_dims) else v_cache, pairs, scales

        yield _case(spec, f"pairs {pairs}", build, 0, 1, 3)
    if _is_far(spec):
        yield from (_far_case(spec, _far_copy, (0, 1, 3), by_dims=by_dims) for by_dims in (False, True))


def _far_copy(spec: OpSpec, g: torch.Generator, *, by_dims: bool) -> tuple[Any, ...]:
    caches, scales = _far_caches(spec, g, by_dims=by_dims)
    return *caches, tuple((_FAR + source, _FAR + destination) for source, destination in ((3, 1), (4, 2), (3, 0))), scales


BATCHES: dict[str, tuple[tuple[int, int], ...]] = {
    "one token": ((1, 1),),
    "decodes at block edges": ((1, 15), (1, 16), (1, 17), (1, 32), (1, 33)),
    "whole prompts": ((1, 1), (15, 15), (16, 16), (33, 33)),
    "decodes at edges of large blocks": ((1, 63), (1, 64), (1, 65), (1, 127), (1, 128), (1, 129)),
    "chunks beside decodes": ((1, 70), (20, 36), (0, 0), (1, 1), (7, 64), (0, 20), (17, 17)),
    "long context": ((1, 700), (3, 300)),
    "longer context": ((1, 257), (13, 1100), (1, 256)),
    "at borders of chunks of 24": ((1, 24), (1, 25), (1, 48), (1, 49), (30, 49), (2, 25), (60, 100)),
}
"""Name -> (query rows, context) of each sequence."""

_SHAPES = (
    *((6, 2, BLOCK_SIZE, False), (4, 4, BLOCK_SIZE, True), (14, 2, 32, True)),
    *((12, 3, 64, True), (9, 3, 8, True), (50, 1, 128, True)),
)
"""Heads, KV heads, block size, by_dims: groups that fill no register tile evenly, and one that is larger than any tile.

Each batch has two of them: that of large blocks' edges those of 64 and 128."""


def attention_arguments(
    spec: OpSpec,
    batch: tuple[tuple[int, int], ...],
    g: torch.Generator,
    n_heads: int = 6,
    n_kv_heads: int = 2,
    block_size: int = BLOCK_SIZE,
    by_dims: bool = False,
) -> tuple[Any, ...]:
    """Arguments of paged_attention; every cache entry that no query may see is as new_caches and new_scales made it, unneeded
    table entries are -1."""
    window, d = 24 if spec.window else 0, spec.head_size  # its borders lie within blocks
    n_blocks = [-(-context // block_size) for _, context in batch]
    free = torch.randperm(sum(n_blocks) + 3, generator=g).tolist()
    caches = new_caches(spec, len(free), block_size, n_kv_heads, by_dims=by_dims)
    scales = new_scales(spec, len(free), block_size, n_kv_heads, by_dims=by_dims)
    tables = torch.full((len(batch), max(*n_blocks, 1) + 1), -1, dtype=torch.int32)
    for i, (n_query, context) in enumerate(batch):
        first = context - n_query
        first_seen = first // window * window if spec.chunked else max(0, first - window + 1) if window else 0
        positions = torch.arange(first_seen if n_query else context, context)
        columns = positions // block_size
        for column in columns.unique().tolist():
            tables[i, column] = free.pop()
        set_random(caches, scales, (tables[i, columns].long(), positions % block_size), g)
    starts = torch.tensor([0, *(n_query for n_query, _ in batch)]).cumsum(0).int()
    contexts = torch.tensor([context for _, context in batch], dtype=torch.int32)
    q = torch.randn(int(starts[-1]), n_heads, d, generator=g).to(spec.dtype)
    return q, *caches, starts, contexts, tables, d**-0.5, window, 5.0 if spec.soft_cap else 0.0, scales, None, spec.chunked


def _attention_cases(spec: OpSpec) -> Iterator[Case]:
    for i, (name, batch) in enumerate(BATCHES.items()):
        for n_heads, n_kv_heads, block_size, by_dims in (_SHAPES[i % len(_SHAPES)], _SHAPES[(i + 2) % len(_SHAPES)]):
            yield _case(
                spec,
                f"{name}, {n_heads} and {n_kv_heads} heads, blocks of {block_size}{', keys by dims' if by_dims else ''}",
                lambda g, batch=batch, shape=(n_heads, n_kv_heads, block_size, by_dims): attention_arguments(
                    spec, batch, g, *shape
                ),
            )
    for name in ("chunks beside decodes", "long context", "one token"):
        yield _case(spec, f"{name}, sinks", lambda g, name=name: _with_sinks(spec, BATCHES[name], g))
    if spec.kv_dtype in (torch.float32, torch.float16, torch.bfloat16):  # the others have no infinity
        yield _case(spec, "keys of -infinity", lambda g: _infinite_keys(spec, g))
    if _is_far(spec):
        yield from (_far_case(spec, _far_attention, (), by_dims=by_dims) for by_dims in (False, True))


def _with_sinks(spec: OpSpec, batch: tuple[tuple[int, int], ...], g: torch.Generator) -> tuple[Any, ...]:
    """Sinks below, among and above the scores."""
    *args, _, chunked = attention_arguments(spec, batch, g, 6, 2, 16, True)
    return *args, torch.tensor([-9.0, 0.0, 9.0, 2.0, -1.0, 40.0]), chunked


def _infinite_keys(spec: OpSpec, g: torch.Generator) -> tuple[Any, ...]:
    """Some scores are -infinity, as they become when a key is too large for the cache; others are not, in each row."""
    q, k_cache, *rest = attention_arguments(spec, ((1, 300), (5, 40), (20, 20)), g)
    q[..., 0] = q[..., 0].abs() + 0.1
    offsets = torch.arange(BLOCK_SIZE)
    k_cache[:, offsets % 5 == 3, :, 0] = -torch.inf
    return q, k_cache, *rest


def _far_attention(spec: OpSpec, g: torch.Generator, *, by_dims: bool) -> tuple[Any, ...]:
    q, *near, starts, contexts, tables, scale, window, cap, scales, sinks, chunked = attention_arguments(
        spec, ((1, 20), (5, 40)), g, by_dims=by_dims
    )
    tables = torch.where(tables < 0, tables, tables + _FAR)
    return q, *map(_far, near), starts, contexts, tables, scale, window, cap, scales and tuple(map(_far, scales)), sinks, chunked


_FAR = 2**31 // (BLOCK_SIZE * 2 * 64) + 1
"""Blocks of two heads of 64 before those that lie beyond 2^31 elements."""


def _is_far(spec: OpSpec) -> bool:
    return spec.device == "cpu" and spec.kv_dtype in (torch.float16, torch.int8) and spec.head_size == 64


def _far(x: Tensor) -> Tensor:
    """x behind _FAR blocks more: that memory is only reserved, and touched by whoever takes it for x's."""
    wide = torch.empty_strided((_FAR + len(x), *x.shape[1:]), x.stride(), dtype=x.dtype)
    wide[_FAR:] = x
    return wide


def _far_caches(spec: OpSpec, g: torch.Generator, *, by_dims: bool) -> tuple[tuple[Tensor, ...], Scales | None]:
    caches, scales = (new(spec, 6, BLOCK_SIZE, 2, by_dims=by_dims) for new in (new_caches, new_scales))
    set_random(caches, scales, (torch.arange(6),), g)
    return tuple(map(_far, caches)), scales and tuple(map(_far, scales))


def _far_case(spec: OpSpec, build: Callable[..., tuple[Any, ...]], written: tuple[int, ...], *, by_dims: bool) -> Case:
    """A case whose blocks lie beyond 2^31 elements into the cache; of what is written, only those are compared."""

    def outputs(args: tuple[Any, ...], result: Any) -> tuple[Tensor, ...]:
        return (*_tensors(result), *(tensor[_FAR:] for i in written for tensor in _tensors(args[i])))

    name = f"offsets above 2^31{', keys by dims' if by_dims else ''}"
    return replace(_case(spec, name, lambda g: build(spec, g, by_dims=by_dims)), outputs=outputs)


def _built(
    builds: Callable[[], Iterator[tuple[str, conformance_sample.Build]]], *written: int
) -> Callable[[OpSpec], Iterator[Case]]:
    return lambda spec: (_case(spec, name, build, *written) for name, build in builds())


_CASES: dict[str, Callable[[OpSpec], Iterator[Case]]] = {
    "quant_linear": _linear_cases,
    "quant_linears": _linears_cases,
    "gated_linear": _gated_cases,
    "add_scaled": lambda spec: (_case(spec, name, build) for name, build in conformance_heads.sum_cases(spec)),
    "heads_linear": lambda spec: (_case(spec, name, build) for name, build in conformance_heads.heads_cases(spec)),
    "embedding": _embedding_cases,
    "rms_norm": _norm_cases,
    "rms_norm_add": _norm_add_cases,
    "rope_and_write_kv": _rope_cases,
    "paged_attention": _attention_cases,
    "silu_mul": _activation_cases,
    "gelu_tanh_mul": _activation_cases,
    "copy_blocks": _copy_cases,
    "sample": _built(conformance_sample.sample_cases),
    "penalize": _built(conformance_sample.penalize_cases, 0),
    "logprobs": _built(conformance_sample.logprobs_cases),
    "uniform": _built(conformance_sample.uniform_cases),
    **{
        op: lambda spec, builds=builds: (_case(spec, name, build) for name, build in builds(spec))
        for op, builds in (conformance_rows.CASES | conformance_experts.CASES).items()
    },
    **{
        op: lambda spec, builds=builds, state=state: (_case(spec, name, build, state) for name, build in builds(spec))
        for op, (builds, state) in conformance_recurrent.CASES.items()
    },
}
