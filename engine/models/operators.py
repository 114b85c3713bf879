"""Operators of one model: resolves names to functions for its device and number formats, once, while it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.ops import Impl, OpSpec
from kernels.registry import resolve, resolved

_PRODUCTS = ("quant_linear", "quant_linears", "gated_linear", "experts_gated", "experts_down")


@dataclass(frozen=True, slots=True)
class Operators:
    device: torch.device
    dtype: torch.dtype
    """Of activations."""
    kv_dtype: torch.dtype
    exact: bool = False
    """Products of weights and activations are taken in float32."""
    used: list[Impl] = field(default_factory=list, init=False, compare=False, repr=False)
    """What the model runs on."""

    @property
    def native(self) -> bool:
        """Whether all that the model runs on are native CPU operators."""
        return all(impl.source.startswith("cpp") for impl in self.used)

    @property
    def plain(self) -> dict[str, tuple[str, ...]]:
        """Operators of the model that run in plain torch -> what keeps each faster implementation from running them."""
        ops = {impl.op for impl in self.used if impl.source == "reference"}
        return {
            resolution.op: resolution.reasons
            for resolution in resolved()
            if resolution.op in ops and resolution.source == "reference" and self._made(resolution.spec)
        }

    def _made(self, spec: OpSpec) -> bool:
        formats = spec.dtype == self.dtype and spec.kv_dtype in (None, self.kv_dtype)
        return formats and spec.device == self.device.type and spec.exact in (False, self.exact)

    def find(self, op: str, *, qtype: str | None = None) -> Impl:
        """An operator on activations, and on weights of `qtype` if it takes any; not counted as used. Raises KernelMissing."""
        return resolve(op, OpSpec(self.device.type, self.dtype, qtype=qtype, exact=self.exact and op in _PRODUCTS))

    def use(self, impl: Impl) -> Callable[..., Any]:
        self.used.append(impl)
        return impl.fn

    def get(self, op: str) -> Callable[..., Any]:
        """An operator on activations alone. Raises KernelMissing."""
        return self.use(self.find(op))

    def get_cached(self, op: str, head_size: int, *, value_size: int | None = None, **flags: bool) -> Callable[..., Any]:
        """An operator on the KV cache; value_size: of values, None: as of keys; flags: those of OpSpec. Raises KernelMissing."""
        sizes = {"head_size": head_size, "value_size": None if value_size == head_size else value_size}
        return self.use(resolve(op, OpSpec(self.device.type, self.dtype, self.kv_dtype, **sizes, **flags)))
