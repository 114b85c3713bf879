"""The operators on a CPU, in C++ with the widest instructions that the processor has."""

from __future__ import annotations

from kernels.cpu import attention, cache, experts, heads, linear, recurrent, rows, sample, sums

IMPLS = (
    *attention.IMPLS,
    *cache.IMPLS,
    *heads.IMPLS,
    *rows.IMPLS,
    *linear.IMPLS,
    *experts.IMPLS,
    *recurrent.IMPLS,
    *sample.IMPLS,
    *sums.IMPLS,
)
