"""compressed-tensors: the format of llm-compressor, in which groups of modules may each have their own scheme.

Beside a module's scales (weight_scale, of [out, in / group], a row each, or one for all) there is, by the scheme's format,
- pack-quantized: weight_packed int32 [out, in * bits / 32] without gaps, weight_shape; zero points, packed in the same way over
  the rows, in weight_zero_point [out * bits / 32, in / group]; both stand for numbers 2^(bits - 1) less. Of 3, 5, 6 and 7 bits,
  older versions packed 32 // bits into a word, whose highest bits are then not used. Checkpoints that older
  versions wrote with actorder group have weight_g_idx [in], the group of each column
- int-quantized, float-quantized, naive-quantized: weight int8 or E4M3 [out, in], of integers weight_zero_point int8
- nvfp4-pack-quantized: weight_packed uint8 [out, in / 2] of two E2M1, the first in the low nibble, weight_scale E4M3
  [out, in / 16], weight_global_scale [1] by which scales are to be divided
- mxfp4-pack-quantized: weight_packed as before, weight_scale uint8 [out, in / 32], the exponents of powers of two
- mxfp8-quantized: weight E4M3, weight_scale as before

Activations are not quantised here, which is more exact; what the file has for that is not used.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.quant import fp8
from engine.quant.base import (
    FLOATS,
    Found,
    Matrix,
    Tensors,
    bad,
    group_of,
    integers,
    modules,
    packed_integers,
    regroup,
    require,
    scale_values,
    unpack,
)
from engine.quant.gptq import column_order
from engine.weights.fields import Fields
from kernels.ops import Weight

log = logging.getLogger(__name__)

FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"),
    *("mxfp8-quantized", "mixed-precision"),
)
_OTHER = "Take another quantisation of the model."
_UNUSED = (*fp8.ACTIVATIONS, "input_zero_point", "input_global_scale", "output_zero_point", "input_g_idx")
_PARTS = ("weight_scale", "weight_zero_point", "weight_global_scale", "weight_shape", "weight_g_idx", "weight_packed")


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of a group of modules are quantised."""

    source: Fields
    targets: tuple[str, ...]
    format: str
    bits: int
    integer: bool
    symmetric: bool
    strategy: str
    group: int
    """Columns of a scale; 0 unless the strategy has groups."""
    block: tuple[int, int] | None


def find(config: Fields, tensors: Tensors) -> Found:
    schemes = _schemes(config)
    if config.get("kv_cache_scheme", None):
        log.info("%s: kv_cache_scheme is left aside; --kv-cache-dtype says how the KV cache is stored.", tensors.path)
    result = Found(unused={name for name in tensors.names() if name.rpartition(".")[2] in _UNUSED})
    for module in modules(tensors, "weight_scale"):
        scheme = _scheme_of(config, tensors, module, schemes)
        make = _MAKERS[scheme.format]
        result.matrices[f"{module}.weight"] = make(scheme, tensors, module)
    taken = {part for matrix in result.matrices.values() for part in matrix.parts}
    for name in tensors.names():
        if name.rpartition(".")[2] in _PARTS and name not in taken:
            raise bad(tensors, name, "belongs to no quantised matrix")
    if not result.matrices:
        raise ModelLoadError(f"{tensors.path}: no tensor is named weight_scale.", "Take a checkpoint that was saved quantised.")
    return result


def _schemes(config: Fields) -> list[Scheme]:
    sparsity = config.section("sparsity_config")
    if sparsity.text("format", "dense") != "dense":
        raise sparsity.bad("format", f"is {sparsity.text('format')}", "Take a checkpoint that is not sparse.")
    if config.section("transform_config").section("config_groups").values:
        raise config.bad("transform_config", "turns activations, which is not supported", _OTHER)
    groups = config.section("config_groups")
    if not groups.values:
        raise config.bad("config_groups", "is missing")
    schemes = [_scheme(groups.section(name), config) for name in groups.values]
    return [scheme for scheme in schemes if scheme is not None]


def _scheme(group: Fields, config: Fields) -> Scheme | None:
    """None for a group that only quantises activations."""
    targets, weights = group.get("targets", ["Linear"]), group.section("weights")
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise group.bad("targets", "is no list of names")
    if not weights.values:
        return None
    form = group.text("format", config.text("format"))
    if form not in FORMATS or (form == "mixed-precision" and group.get("format", None) is None):
        owner = group if group.get("format", None) else config
        raise owner.bad("format", f"is {form}", f"Supported: {', '.join(FORMATS[:-1])}.")
    kind = weights.text("type", "int")
    strategy = weights.text("strategy", "group" if weights.get("group_size", None) else "tensor")
    if kind not in ("int", "float") or strategy not in ("tensor", "channel", "group", "tensor_group", "block"):
        name, value = ("type", kind) if kind not in ("int", "float") else ("strategy", strategy)
        raise weights.bad(name, f"is {value}", _OTHER)
    block = weights.get("block_structure", None)
    if strategy == "block" and not fp8.is_block(block):
        raise weights.bad("block_structure", f"is {block}, expected the numbers of rows and columns of a block")
    return Scheme(
        source=weights,
        targets=tuple(targets),
        format=form,
        bits=weights.integer("num_bits", 8, low=1, high=8),
        integer=kind == "int",
        symmetric=weights.flag("symmetric", True),
        strategy=strategy,
        group=weights.integer("group_size") if strategy in ("group", "tensor_group") else 0,
        block=(block[0], block[1]) if strategy == "block" else None,
    )


def _scheme_of(config: Fields, tensors: Tensors, module: str, schemes: list[Scheme]) -> Scheme:
    """The scheme whose target fits best: the name itself before a pattern, that before the kind of module."""
    if len(schemes) == 1:
        return schemes[0]
    names = module, tensors.stored_name(f"{module}.weight_scale").removesuffix(".weight_scale")
    ways: tuple[Callable[[str], bool], ...] = (
        lambda target: target in names,
        lambda target: any(_fits(config, target, name) for name in names),
        lambda target: target == "Linear",
    )
    for fits in ways:
        for scheme in schemes:
            if any(fits(target) for target in scheme.targets):
                return scheme
    raise config.bad("config_groups", f"has no target that fits {names[1]}, which is quantised")


def _fits(config: Fields, target: str, name: str) -> bool:
    try:
        return target.startswith("re:") and re.match(target.removeprefix("re:"), name) is not None
    except re.error:
        raise config.bad("config_groups", f"has the target {target!r}, which is no pattern") from None


def _packed(scheme: Scheme, tensors: Tensors, module: str) -> Matrix:
    bits = scheme.bits
    if not scheme.integer or bits < 2:
        raise scheme.source.bad("num_bits", f"and type are {bits} and {'int' if scheme.integer else 'float'} in {scheme.format}")
    packed, shape_name, scale = (f"{module}.{part}" for part in ("weight_packed", "weight_shape", "weight_scale"))
    require(tensors, shape_name, ("I64", "I32"), (2,))
    n_out, n_in = (int(size) for size in tensors.tensor(shape_name))
    if min(n_out, n_in) <= 0:
        raise bad(tensors, shape_name, f"says that the matrix is {n_out} x {n_in}")
    shapes = ((n_out, _words(n_in, bits, gaps)) for gaps in (False, True))
    has_gaps = require(tensors, packed, ("I32",), *dict.fromkeys(shapes))[1] > _words(n_in, bits)
    parts, stored, n_groups = _scales(scheme, tensors, scale, n_out, n_in)
    if not scheme.symmetric:
        zeros = f"{module}.weight_zero_point"
        require(tensors, zeros, ("I32",), (_words(n_out, bits, has_gaps), n_groups))
        parts.append(zeros)
    index = f"{module}.weight_g_idx"
    ordered = index in tensors.names()
    if ordered:
        require(tensors, index, ("I32", "I64"), (n_in,))
    qtype = "INT4" if bits <= 4 else "INT8"
    group = group_of(tensors, packed, qtype, n_in, stored)
    load = partial(
        _load_packed, tensors, (packed, *parts), index if ordered else None, bits, (n_out, n_in), stored, group, has_gaps
    )
    every = (packed, *parts, shape_name, *((index,) if ordered else ()))
    n_copies = 4 if ordered else 1 if bits == 4 else 3
    return Matrix(qtype, (n_out, n_in), group, every, load, zeros=not scheme.symmetric, order=ordered, n_copies=n_copies)


def _load_packed(
    tensors: Tensors,
    parts: tuple[str, ...],
    index: str | None,
    bits: int,
    shape: tuple[int, int],
    stored: int,
    group: int,
    has_gaps: bool,
) -> Weight:
    words, scales, *zeros = (tensors.tensor(name) for name in parts)
    n_out, n_in = shape
    scales = _rows(scales.float(), n_out)
    take_out = _with_gaps if has_gaps else unpack
    points = take_out(zeros[0].T, bits, n_out).T if zeros else None
    order = None
    if index is not None:
        order = column_order(tensors, index, tensors.tensor(index).long(), stored, scales.shape[1])
    points = None if points is None else regroup(points, stored, group, n_in)
    scales = regroup(scales, stored, group, n_in)
    if not has_gaps:
        return packed_integers(words, n_in, points, scales, bits, order)
    q = _with_gaps(words, bits, n_in)
    return integers(q, points, scales, bits) if order is None else integers(q[:, order], points, scales, bits, order.int())


def _words(n_values: int, bits: int, has_gaps: bool = False) -> int:
    return -(-n_values // (32 // bits)) if has_gaps else -(-n_values * bits // 32)


def _with_gaps(words: Tensor, bits: int, n_values: int) -> Tensor:
    """int32 [rows, words], each of 32 // bits whole values, the lowest bits first -> uint8 [rows, n_values]"""
    of_word = 32 // bits
    values = torch.empty(words.shape[0], words.shape[1] * of_word, dtype=torch.uint8)
    for i in range(of_word):
        values[:, i::of_word] = words >> bits * i & (1 << bits) - 1
    return values[:, :n_values]


def _plain(scheme: Scheme, tensors: Tensors, module: str) -> Matrix:
    """Integers or E4M3, a byte each."""
    if not scheme.integer:
        if scheme.strategy == "group":
            return fp8.fp8_matrix(tensors, module, (1, scheme.group))
        return fp8.fp8_matrix(tensors, module, scheme.block)
    weight = f"{module}.weight"
    n_out, n_in = require(tensors, weight, ("I8",), (-1, -1))
    parts, stored, n_groups = _scales(scheme, tensors, f"{module}.weight_scale", n_out, n_in)
    if not scheme.symmetric:
        zeros = f"{module}.weight_zero_point"
        require(tensors, zeros, ("I8",), tensors.shape(parts[0]))
        parts.append(zeros)
    group = group_of(tensors, weight, "INT8", n_in, stored)
    load = partial(_load_plain, tensors, (weight, *parts), stored, group)
    return Matrix("INT8", (n_out, n_in), group, (weight, *parts), load, zeros=not scheme.symmetric)


def _load_plain(tensors: Tensors, parts: tuple[str, ...], stored: int, group: int) -> Weight:
    data, *apart = (tensors.tensor(name) for name in parts)
    n_out, n_in = data.shape
    scales, *zeros = (regroup(_rows(values, n_out), stored, group, n_in) for values in apart)
    points = zeros[0].to(torch.int16) if zeros and zeros[0].any() else None
    return Weight("INT8", (n_out, n_in), data, scales.float(), points)


def _e2m1(scheme: Scheme, tensors: Tensors, module: str) -> Matrix:
    packed, scale = f"{module}.weight_packed", f"{module}.weight_scale"
    n_out, n_bytes = require(tensors, packed, ("U8",), (-1, -1))
    n_in, of_nvidia = 2 * n_bytes, scheme.format == "nvfp4-pack-quantized"
    stored = 16 if of_nvidia else 32
    if scheme.group != stored:
        raise scheme.source.bad("group_size", f"is {scheme.group} instead of {stored} in {scheme.format}")
    require(tensors, scale, ("F8_E4M3", *FLOATS) if of_nvidia else ("U8", "F8_E8M0"), (n_out, -(-n_in // stored)))
    parts = [packed, scale]
    if of_nvidia:
        whole = f"{module}.weight_global_scale"
        require(tensors, whole, FLOATS, (), (1,))
        parts.append(whole)
    group = group_of(tensors, packed, "E2M1", n_in, stored)
    load = partial(e2m1_weight, tensors, tuple(parts), torch.div)
    return Matrix("E2M1", (n_out, n_in), group, tuple(parts), load)


def e2m1_weight(tensors: Tensors, parts: tuple[str, ...], combine: Callable[[Tensor, Tensor], Tensor]) -> Weight:
    """parts: values, scales, and the scale of scales, which `combine` puts together, if there is one."""
    data, scales, *whole = (tensors.tensor(name) for name in parts)
    scales = scale_values(scales)
    if whole:
        scales = combine(scales, whole[0].float())
    return Weight("E2M1", (data.shape[0], 2 * data.shape[1]), data, scales.contiguous())


def _scales(scheme: Scheme, tensors: Tensors, name: str, n_out: int, n_in: int) -> tuple[list[str], int, int]:
    """(the tensor's name in a list, columns of a scale, scales of a row), where it is as the scheme says."""
    stored = scheme.group if scheme.strategy == "group" else n_in
    n_groups = -(-n_in // stored)
    if scheme.strategy == "tensor":
        require(tensors, name, FLOATS, (), (1,), (1, 1))
    elif scheme.strategy in ("channel", "group"):
        require(tensors, name, FLOATS, (n_out, n_groups))
    else:
        raise scheme.source.bad("strategy", f"is {scheme.strategy} in {scheme.format}", _OTHER)
    return [name], stored, n_groups


def _rows(values: Tensor, n_out: int) -> Tensor:
    """As many rows as there are of the matrix, where one was for all."""
    return values.reshape(1, 1).expand(n_out, 1) if values.numel() == 1 else values


_MAKERS: dict[str, Callable[[Scheme, Tensors, str], Matrix]] = {
    "pack-quantized": _packed,
    "int-quantized": _plain,
    "float-quantized": _plain,
    "naive-quantized": _plain,
    "mxfp8-quantized": _plain,
    "nvfp4-pack-quantized": _e2m1,
    "mxfp4-pack-quantized": _e2m1,
}
