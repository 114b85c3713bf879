"""The operators: signature, shapes and meaning of each. This file is the contract that every implementation meets.

Caches may have any strides: their shape says what is where, the storage decides how it lies in memory. Those of int8 have
scales, (k's, v's), each float32 [n_blocks, block_size, Hkv] with strides of its own: a value is its int8 times the scale of
its token and head. Float32 takes two bytes more than float16 of the 66 that a head of 64 takes, but scales of any key are
neither infinite nor coarse. Other caches have None for scales. float8_e4m3fn (E4M3 of arXiv:2209.05433) is one of them: it
rounds to four significant bits at any magnitude from 2^-6 to 448, so that scales would widen its range and sharpen nothing,
for the memory that int8 takes.

Letters used in shapes: n rows (tokens of a step), s sequences, h hidden size, f width of the MLP, E experts, of which a row
has k, H query heads, Hkv KV
heads, which divide H, D head size, R rotated dims of a head. An operator returns the dtype of its activations, sums in
float32, and allocates its result unless it says that it writes in place. Arguments are on one device.

Batch invariance is part of the contract: a row of the result depends on that row, its position and the weights only. The
reference meets it up to rounding, for torch sums a product in an order that depends on its sizes.

Fast implementations of the products may quantise activations to int8 in blocks; with `exact` in the spec they must not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from kernels.ops_experts import AddGated, ExpertsDown, ExpertsGated, Product, Route
from kernels.ops_experts import Routing as Routing
from kernels.ops_heads import AddScaled, HeadsLinear
from kernels.ops_rows import Activation, Add, LayerNorm, ScaleRows
from kernels.ops_sample import Logprobs, Penalize, Sample, Uniform

DENSE: dict[str, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Unquantised weight types, and the dtype in which their data is held."""

BLOCKS: dict[str, tuple[int, int]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "MXFP4": (32, 17),
    "TQ1_0": (256, 54),
    "TQ2_0": (256, 66),
    "IQ2_XXS": (256, 66),
    "IQ2_XS": (256, 74),
    "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98),
    "IQ3_S": (256, 110),
    "IQ1_S": (256, 50),
    "IQ1_M": (256, 56),
}
"""Quantised weight types: (values per block, bytes per block). Layouts as in ggml-common.h of llama.cpp."""

SCALED: dict[str, tuple[torch.dtype, int]] = {
    "INT4": (torch.uint8, 2),
    "INT8": (torch.int8, 1),
    "FP8": (torch.float8_e4m3fn, 1),
    "NF4": (torch.uint8, 2),
    "FP4": (torch.uint8, 2),
    "E2M1": (torch.uint8, 2),
}
"""Quantised weight types whose scales lie apart from the data: (dtype of the data, values in each of its elements).

Of two values in an element, the first is its low nibble. With q the number in the data, a value is
- INT4, INT8: (q - zero point) * scale; what AWQ, GPTQ and compressed-tensors store can be put so, of 8 bits without a sign
  by taking 128 off q and zero point
- FP8: q * scale, in the E4M3 of arXiv:2209.05433; what its NaN becomes is left open, for weights have none
- NF4, FP4, E2M1: CODES[type][q] * scale; bitsandbytes has the first value in the high nibble. MXFP4 of the OCP is E2M1 in
  groups of 32, NVFP4 in groups of 16 whose scale is its E4M3 times that of the tensor
"""

# fmt: off
CODES: dict[str, tuple[float, ...]] = {
    "NF4": (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
        -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
        0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
    "FP4": (
        0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25,
        0.0, -0.0052083334885537624, -0.6666666865348816, -1.0, -0.3333333432674408, -0.5, -0.1666666716337204, -0.25,
    ),
    "E2M1": (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0),
}
# fmt: on
"""What each nibble stands for, exact in float32. NF4: appendix E of the QLoRA paper (arXiv:2305.14314); FP4: the table of
bitsandbytes' get_4bit_type; E2M1: the OCP's Microscaling Formats, version 1.0, section 5.3.3."""

GROUP_UNIT = {"INT4": 32, "INT8": 32, "FP8": 32, "NF4": 32, "FP4": 32, "E2M1": 16}
"""A scale of a type in SCALED is for a multiple of this many values of a row."""

ROW_UNIT = 32
"""Rows of types in SCALED have a multiple of this many values."""

ZEROS = {"INT4": torch.uint8, "INT8": torch.int16}
"""Types in SCALED that may have zero points, and the dtype of these."""

QTYPES = (*DENSE, *BLOCKS, *SCALED)

Scales = tuple[Tensor, Tensor]
"""Of an int8 cache: k's and v's."""


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A matrix that maps rows of `shape[1]` values to rows of `shape[0]` values.

    data is [out, in] of the dtype in DENSE, or uint8 [out, bytes per row] of GGUF blocks, or [out, in / values per element] of
    the dtype in SCALED; it may be a view on a file that is mapped into memory, so nobody writes to it.

    Types in SCALED have scales float32 [out, in / group], each for `group` values that follow each other in a row, a multiple of
    its GROUP_UNIT; a scale for each row is a group of `in`. INT4 may have zeros, uint8 [out, in / group], its zero points: 0 to
    16, since GPTQ stores one less; without them they are 8. INT8 may have zeros of int16, -128 to 128; without them they are 0.

    Types in SCALED may have an order, int32 [in], a permutation: column j of data, with its scale, belongs to value order[j] of
    a row of x, so that the product is that of x[:, order] (GPTQ's act-order, where neighbours in a group are of about one
    importance and not neighbours in x). Weights of an embedding have none.

    ValueError, which names the type, if dtypes or shapes are others.
    """

    qtype: str
    shape: tuple[int, int]
    data: Tensor
    scales: Tensor | None = None
    zeros: Tensor | None = None
    order: Tensor | None = None

    def __post_init__(self) -> None:
        n_out, n_in = self.shape
        if self.qtype in DENSE:
            expected, dtype = (n_out, n_in), DENSE[self.qtype]
        elif self.qtype in BLOCKS:
            n_values, n_bytes = BLOCKS[self.qtype]
            if n_in % n_values:
                raise ValueError(f"A {self.qtype} row has whole blocks of {n_values} values, but this one has {n_in} values.")
            expected, dtype = (n_out, n_in // n_values * n_bytes), torch.uint8
        elif self.qtype in SCALED:
            dtype, n_values = SCALED[self.qtype]
            expected = (n_out, n_in // n_values)
        else:
            raise ValueError(f"Unknown weight type {self.qtype}; known: {', '.join(QTYPES)}.")
        self._check("data", self.data, dtype, expected)
        if self.qtype in SCALED:
            self._check_groups()
        elif self.scales is not None or self.zeros is not None or self.order is not None:
            raise ValueError(f"A {self.qtype} weight has no scales, zeros or order beside its data.")

    def _check_groups(self) -> None:
        n_out, n_in = self.shape
        if self.scales is None:
            raise ValueError(f"A {self.qtype} weight needs scales.")
        if n_in % ROW_UNIT:
            raise ValueError(f"A {self.qtype} row has a multiple of {ROW_UNIT} values, but this one has {n_in}.")
        n_groups, unit = self.scales.shape[1] if self.scales.ndim == 2 else 0, GROUP_UNIT[self.qtype]
        if n_groups == 0 or n_in % n_groups or n_in // n_groups % unit:
            raise ValueError(
                f"Scales of a {self.qtype} weight of shape {self.shape} are [out, in / group] for a group that divides in and is "
                f"a multiple of {unit}, not {tuple(self.scales.shape)}."
            )
        self._check("scales", self.scales, torch.float32, (n_out, n_groups))
        if self.zeros is not None:
            if self.qtype not in ZEROS:
                raise ValueError(f"A {self.qtype} weight has no zeros.")
            self._check("zeros", self.zeros, ZEROS[self.qtype], (n_out, n_groups))
        if self.order is not None:
            self._check("order", self.order, torch.int32, (n_in,))

    def _check(self, name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, int]) -> None:
        if tuple(tensor.shape) != shape or tensor.dtype != dtype:
            raise ValueError(
                f"A {self.qtype} weight of shape {self.shape} needs {dtype} {name} of shape {shape}, "
                f"not {tensor.dtype} {tuple(tensor.shape)}."
            )

    @property
    def group(self) -> int:
        """Values of a row to which a scale belongs; only types in SCALED have it."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def n_bytes(self) -> int:
        tensors = (self.data, self.scales, self.zeros, self.order)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)

    def map(self, change: Callable[[Tensor], Tensor]) -> Weight:
        """A Weight of change(tensor) for each tensor of this one, which may pick rows, move or copy them.

        The order is not by rows and stays the same tensor.
        """
        data, scales, zeros = (tensor if tensor is None else change(tensor) for tensor in (self.data, self.scales, self.zeros))
        return Weight(self.qtype, (data.shape[0], self.shape[1]), data, scales, zeros, self.order)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """What an implementation must cope with. A field left out says that the operator does not depend on it."""

    device: str = "cpu"
    """Device type as torch names it: "cpu", "cuda"."""
    dtype: torch.dtype | None = None
    """Of the activations."""
    kv_dtype: torch.dtype | None = None
    qtype: str | None = None
    head_size: int | None = None
    value_size: int | None = None
    """Dims of a head's values, where they are not as many as those of its keys."""
    window: bool = False
    chunked: bool = False
    """The window is a chunk of the text."""
    soft_cap: bool = False
    exact: bool = False
    """Products of weights and activations are taken in float32, as the reference takes them."""

    def __str__(self) -> str:
        parts = [self.device]
        parts += [str(value).removeprefix("torch.") for value in (self.dtype, self.qtype) if value is not None]
        parts += [f"kv {str(self.kv_dtype).removeprefix('torch.')}"] if self.kv_dtype is not None else []
        parts += [f"head {self.head_size}"] if self.head_size is not None else []
        parts += [f"values {self.value_size}"] if self.value_size is not None else []
        flags = (("window", self.window), ("chunked", self.chunked), ("soft cap", self.soft_cap), ("exact", self.exact))
        parts += [name for name, used in flags if used]
        return ", ".join(parts)


class QuantLinear(Protocol):
    """x [n, in], bias [out] or None -> [n, out]: x times the dequantised weight transposed, plus the bias."""

    def __call__(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor: ...


class QuantLinears(Protocol):
    """quant_linear for several weights on the same x, each with its bias or None; the results in the same order."""

    def __call__(self, x: Tensor, weights: Sequence[Weight], biases: Sequence[Tensor | None]) -> tuple[Tensor, ...]: ...


class GatedLinear(Protocol):
    """activation(x times gate transposed + bias) * (x times up transposed + bias), [n, out].

    `activation` is "silu" or "gelu_tanh", as of silu_mul and gelu_tanh_mul.
    """

    def __call__(
        self, x: Tensor, gate: Weight, up: Weight, biases: tuple[Tensor | None, Tensor | None], activation: str
    ) -> Tensor: ...


class Embedding(Protocol):
    """ids int64 [n] -> [n, in] of `dtype`: the rows of the weight, of which only these are dequantised, times `scale`.

    An id that is no row is an error of the caller: it raises, or gives NaN, from which no token is drawn.
    """

    def __call__(self, ids: Tensor, weight: Weight, dtype: torch.dtype, scale: float = 1.0) -> Tensor: ...


class RMSNorm(Protocol):
    """x [..., h], weight [h] -> [..., h]: x / sqrt(mean(x^2) + eps) * weight, over the last dim; also for q and k heads."""

    def __call__(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...


class RMSNormAdd(Protocol):
    """x, residual [n, h], weight [h] -> (rms_norm(x + residual), x + residual)."""

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]: ...


class RopeAndWriteKV(Protocol):
    """Rotate q and k, write k and v into the cache; return q rotated, [n, H, D].

    q [n, H, D], k [n, Hkv, D] and v [n, Hkv, Dv], positions int64 [n], cos and sin float32 [positions in all, R / 2], caches
    [n_blocks, block_size, Hkv, D or Dv] (written in place), slots int64 [n]: block id * block_size + offset, or -1 for a padding
    row, which is written nowhere. Dims 0 .. R rotate in the half-split (NeoX) way: dim i pairs with i + R / 2; dims R .. D
    stay, which are all of them where R is 0. k's own memory may be reused.

    Without k and v nothing is written: the layer reads what another one wrote, and wants q turned.

    Without v_cache values are the end of the keys: k has D - Dv dims, at least R, behind which v is written, and of an int8
    cache the scales of k.

    Into floating-point types numbers are rounded to the nearest, ties to even, subnormal ones too; NaN stays NaN. Into float16
    and float8_e4m3fn, what is larger in magnitude than their largest number, 65504 or 448, infinities too, is written as that
    number with its sign: one score that is not exact does less harm than one that is infinite, or NaN, for E4M3 has no infinity.

    Into int8, x [D] of one token and head, after rotation, is written as round(x / scale) with ties to even, within -127 ..
    127, and its scale as max |x| / 127. Where that is 0 all are written as 0; where x is not finite too, and its scale as NaN.
    """

    def __call__(
        self,
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
    ) -> Tensor: ...


class PagedAttention(Protocol):
    """Causal attention of each query row over its own sequence's cached keys and values; [n, H, Dv].

    q [n, H, D]; caches [n_blocks, block_size, Hkv, D] of keys and [.., Dv] of values, which may be a part of the keys' memory,
    already holding this step's keys and values; query head i uses KV head i * Hkv // H. query_starts int32 [s + 1]: sequence i
    owns rows query_starts[i] .. query_starts[i + 1]; its row j sits at position context_lens[i] - n_query_i + j. context_lens
    int32 [s]. block_tables int32 [s, most blocks], padded with -1.
    Keys at positions up to the query's are seen; with window w > 0 only those less than w back, or, if `chunked`, those from the
    query's position p // w * w on (Llama 4). soft_cap c > 0 replaces a score x (already times scale) by c * tanh(x / c). sinks
    float32 [H]: of each query head a score that is in the sum of the softmax without a key or value (gpt-oss). Cache contents
    and scales that no query sees never matter, NaN included, and table entries of blocks that lie wholly behind the window, or
    before the chunk, may be -1. A sequence without query rows is allowed, also with context 0.
    """

    def __call__(
        self,
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
    ) -> Tensor: ...


class CausalConv(Protocol):
    """A convolution of each channel over the last W tokens of its own sequence, then x * sigmoid(x) if `activate`; [n, C].

    x [n, C], weight [C, W], whose last column is for the token itself, bias [C] or None. state float32 [n_blocks, C, W - 1] has
    the last W - 1 inputs of each channel, and is written in place. query_starts int32 [s + 1] and context_lens int32 [s] as of
    paged_attention; state_ids int32 [s]: the block of each sequence's state, which nobody else has. A sequence whose rows begin
    at position 0 begins with zeros, whatever its block holds; one without rows leaves it as it is.
    """

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor,
        query_starts: Tensor,
        context_lens: Tensor,
        state_ids: Tensor,
        activate: bool = True,
    ) -> Tensor: ...


class DeltaRule(Protocol):
    """The gated delta rule (arXiv:2412.06464), token by token; [n, H, V].

    q and k [n, Hk, K], v [n, H, V], a and b [n, H], log_rates and bias [H]; head h uses q and k of head h * Hk // H, or of
    h % Hk if `tiled`, each divided by its length, sqrt(sum of squares + 1e-6), q by sqrt(K) too. state float32
    [n_blocks, H, K, V] S, in place, becomes S' = exp(-exp(log_rate) softplus(a + bias)) S, then
    S = S' + k (sigmoid(b) (v - k S')); the result is q S. The rest is as in CausalConv.
    """

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        a: Tensor,
        b: Tensor,
        log_rates: Tensor,
        bias: Tensor,
        state: Tensor,
        query_starts: Tensor,
        context_lens: Tensor,
        state_ids: Tensor,
        tiled: bool = False,
    ) -> Tensor: ...


class StateScan(Protocol):
    """The state space of Mamba-2 (arXiv:2405.21060), token by token; [n, H, V].

    x [n, H, V], steps [n, H], b and c [n, G, K], log_rates, bias and skip [H]; head h uses b and c of group h * G // H. With
    step' = softplus(step + bias), state float32 [n_blocks, H, K, V] S, in place, becomes
    exp(-exp(log_rate) step') S + b (step' x); the result is c S + skip * x. The rest is as in CausalConv.
    """

    def __call__(
        self,
        x: Tensor,
        steps: Tensor,
        b: Tensor,
        c: Tensor,
        log_rates: Tensor,
        bias: Tensor,
        skip: Tensor,
        state: Tensor,
        query_starts: Tensor,
        context_lens: Tensor,
        state_ids: Tensor,
    ) -> Tensor: ...


class GatedActivation(Protocol):
    """gate, up [n, f] -> [n, f]: activation(gate) * up. silu_mul: x * sigmoid(x); gelu_tanh_mul: GELU's tanh form."""

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor: ...


class CopyBlocks(Protocol):
    """Copy whole blocks, with their scales, inside one layer's caches, in place. Of the pairs (source, destination)
    sources may repeat; no block is both a source and a destination, none is a destination twice. Without v_cache keys are
    copied, and their scales.
    """

    def __call__(
        self, k_cache: Tensor, v_cache: Tensor | None, pairs: Sequence[tuple[int, int]], scales: Scales | None = None
    ) -> None: ...


OPERATORS: dict[str, type] = {
    "quant_linear": QuantLinear,
    "quant_linears": QuantLinears,
    "gated_linear": GatedLinear,
    "heads_linear": HeadsLinear,
    "route": Route,
    "experts_gated": ExpertsGated,
    "experts_down": ExpertsDown,
    "add_gated": AddGated,
    "mul": Product,
    "sigmoid_mul": Product,
    "add_scaled": AddScaled,
    "embedding": Embedding,
    "rms_norm": RMSNorm,
    "rms_norm_add": RMSNormAdd,
    "layer_norm": LayerNorm,
    "add": Add,
    "scale_rows": ScaleRows,
    "rope_and_write_kv": RopeAndWriteKV,
    "paged_attention": PagedAttention,
    "causal_conv": CausalConv,
    "delta_rule": DeltaRule,
    "state_scan": StateScan,
    "silu_mul": GatedActivation,
    "gelu_tanh_mul": GatedActivation,
    "gelu_tanh": Activation,
    "relu_squared": Activation,
    "copy_blocks": CopyBlocks,
    "sample": Sample,
    "penalize": Penalize,
    "logprobs": Logprobs,
    "uniform": Uniform,
}
"""Every operator's name and the protocol its implementations follow."""


@dataclass(frozen=True, slots=True)
class Impl:
    """One implementation of an operator.

    supports(spec) returns None, or in a few words why not; it never tries the operator out. `specs` are the cases that
    conformance.py runs against the reference, or the tests against formulas of their own if this is the reference; each of
    them must be supported. pack, if the implementation reads weights in a layout of its own, makes it of a Weight: an object
    with qtype, shape and n_bytes that stands for the Weight in calls of this operator and of all others with the same pack.
    rounds, if the implementation quantises activations, is what it makes of x: its result is compared with the reference's
    for the rounded x.
    """

    op: str
    source: str
    fn: Callable[..., Any]
    supports: Callable[[OpSpec], str | None]
    specs: tuple[OpSpec, ...]
    pack: Callable[[Weight], Any] | None = None
    rounds: Callable[[Tensor], Tensor] | None = None
