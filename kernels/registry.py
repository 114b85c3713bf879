"""Which implementation runs an operator: resolved once at load, from what each implementation declares."""

from __future__ import annotations

from dataclasses import dataclass

from kernels import cpu, reference
from kernels.ops import OPERATORS, Impl, OpSpec

SOURCES = ("triton", "cpp", "cpp exact", "reference")
"""Fastest first; the first one that supports a spec is taken."""


class KernelMissing(Exception):
    """No implementation supports an operator on this spec; the message names both and each implementation's reason."""

    def __init__(self, op: str, spec: OpSpec, reasons: list[str]) -> None:
        self.op = op
        self.spec = spec
        self.message = f"No kernel for {op} ({spec})."
        self.hint = "\n".join(reasons) or "No implementation is registered for this operator."
        super().__init__(f"{self.message}\n{self.hint}")


@dataclass(frozen=True, slots=True)
class Resolution:
    """What was chosen for a spec, and why the faster sources were not."""

    op: str
    spec: OpSpec
    source: str
    reasons: tuple[str, ...]


_impls: dict[str, list[Impl]] = {op: [] for op in OPERATORS}
_resolved: dict[tuple[str, OpSpec], tuple[Impl, Resolution]] = {}


def register(*impls: Impl) -> None:
    """Make implementations known. ValueError for an unknown operator or source, or a source that is there twice."""
    for impl in impls:
        if impl.op not in OPERATORS or impl.source not in SOURCES:
            raise ValueError(f"{impl.op} from {impl.source} is not an operator of kernels.ops from one of {SOURCES}.")
        if any(known.source == impl.source for known in _impls[impl.op]):
            raise ValueError(f"{impl.op} already has an implementation from {impl.source}.")
        _impls[impl.op].append(impl)
        _impls[impl.op].sort(key=lambda known: SOURCES.index(known.source))


def implementations(op: str) -> tuple[Impl, ...]:
    """Every registered implementation of an operator, fastest source first."""
    return tuple(_impls[op])


def resolve(op: str, spec: OpSpec) -> Impl:
    """The fastest implementation that supports the spec. Raises KernelMissing, or ValueError for an unknown operator."""
    if op not in OPERATORS:
        raise ValueError(f"{op} is not an operator; kernels.ops has {', '.join(OPERATORS)}.")
    if (op, spec) not in _resolved:
        reasons = []
        for impl in _impls[op]:
            reason = impl.supports(spec)
            if reason is None:
                _resolved[op, spec] = impl, Resolution(op, spec, impl.source, tuple(reasons))
                break
            reasons.append(f"{impl.source}: {reason}")
        else:
            raise KernelMissing(op, spec, reasons)
    return _resolved[op, spec][0]


def resolved() -> tuple[Resolution, ...]:
    """What this process has resolved so far, in the operators' order."""
    order = list(OPERATORS)
    resolutions = (resolution for _, resolution in _resolved.values())
    return tuple(sorted(resolutions, key=lambda resolution: (order.index(resolution.op), str(resolution.spec))))


def report() -> list[str]:
    """Lines for a person: operator, spec, chosen source, and why no faster one was chosen."""
    lines = []
    for resolution in resolved():
        why = f" ({'; '.join(resolution.reasons)})" if resolution.reasons else ""
        lines.append(f"{resolution.op:18} {resolution.spec!s:40} {resolution.source}{why}")
    return lines


register(*cpu.IMPLS, *reference.IMPLS)
