"""The operators on a CPU, in C++ with the widest instructions that the processor has."""

from __future__ import annotations

from kernels.cpu import attention, cache, experts, linear, recurrent, rows, sample

IMPLS = (
    *attention.IMPLS,
    *cache.IMPLS,
    *rows.IMPLS,
    *linear.IMPLS,
    *experts.IMPLS,
    *recurrent.IMPLS,
    *sample.IMPLS,
)
