"""Tokens and log probabilities from logits, natively."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.launch import launch, native
from kernels.cpu.support import require, require_shape, unsupported, whole, whole_rows
from kernels.ops import Impl, OpSpec


def sample(logits: Tensor, draws: Tensor | None = None, numbers: Tensor | None = None) -> Tensor:
    n_rows, n = logits.shape
    require(torch.float32, logits=logits)
    require(torch.float64, draws=draws, numbers=numbers)
    require_shape((n_rows, 4), draws=draws)
    require_shape((n_rows,), numbers=numbers)
    logits = whole_rows(logits)
    out = torch.empty(n_rows, dtype=torch.int64)
    launch(native.Sample, out, logits, whole(draws), whole(numbers), n, logits.stride(0), n_rows=n_rows)
    return out


def penalize(
    logits: Tensor, seen: Tensor, repetition: float, output: Tensor, counts: Tensor, frequency: float, presence: float
) -> None:
    """ValueError for logits with gaps, which cannot be edited in place."""
    if not logits.is_contiguous():
        raise ValueError(f"Logits of a row lie side by side, not {logits.stride(0)} values apart.")
    require(torch.float32, logits=logits)
    require(torch.int64, seen=seen, output=output)
    require(torch.float64, counts=counts)
    require_shape((len(output),), counts=counts)
    seen, output, counts = seen.contiguous(), output.contiguous(), counts.contiguous()
    edits = seen, len(seen), repetition, output, counts, len(output), frequency, presence
    launch(native.Penalize, logits, *edits, n_rows=1)


def logprobs(logits: Tensor, ids: Tensor, n_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n_rows, n = logits.shape
    require(torch.float32, logits=logits)
    require(torch.int64, ids=ids)
    require_shape((n_rows,), ids=ids)
    logits = whole_rows(logits)
    values, ranks = torch.empty(n_rows), torch.empty(n_rows, dtype=torch.int64)
    top_values, top_ids = torch.empty(n_rows, n_top), torch.empty(n_rows, n_top, dtype=torch.int64)
    out = values, ranks, top_values, top_ids
    launch(native.Logprobs, *out, logits, ids.contiguous(), n, logits.stride(0), n_top, n_rows=n_rows)
    return out


def uniform(keys: Tensor) -> Tensor:
    require(torch.int64, keys=keys)
    require_shape((len(keys), 3), keys=keys)
    out = torch.empty(len(keys), dtype=torch.float64)
    launch(native.Uniform, out, keys.contiguous(), n_rows=len(keys))
    return out


IMPLS = tuple(
    Impl(op, "cpp", fn, unsupported, (spec,))
    for op, fn, spec in (
        ("sample", sample, OpSpec(dtype=torch.float32)),
        ("penalize", penalize, OpSpec(dtype=torch.float32)),
        ("logprobs", logprobs, OpSpec(dtype=torch.float32)),
        ("uniform", uniform, OpSpec()),
    )
)
