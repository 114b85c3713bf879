"""bitsandbytes: NF4, FP4 and int8, as transformers saves what bitsandbytes quantised.

Of four bits, a matrix's values lie in weight, two in a byte, the first of them in the high nibble, in blocks that run on over the
ends of rows. Beside it are weight.absmax, the scale of each block; weight.quant_map, the sixteen values; and
weight.quant_state.bitsandbytes__nf4 or __fp4, JSON in bytes with shape, blocksize and quant_type. With scales that are quantised
too, absmax are places in weight.nested_quant_map, times weight.nested_absmax of each nested_blocksize, plus nested_offset.

int8 (LLM.int8, arXiv:2208.07339): weight int8 [out, in], and SCB [out], the largest value of each row, which 127 stands for.
"""

from __future__ import annotations

import json
import math
from functools import partial

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.quant.base import DAMAGED, Found, Matrix, Tensors, bad, group_of, modules, require
from engine.weights.fields import Fields
from engine.weights.safetensors_files import ITEM_BYTES
from kernels.ops import CODES, Weight

_STATE = "quant_state.bitsandbytes__"
_KINDS = {"nf4": "NF4", "fp4": "FP4"}
_STORAGE = ("U8", "I8", "F32", "F16", "BF16")
"""Types in whose guise the bytes of values may lie (bnb_4bit_quant_storage)."""
_MOST_STATE = 1 << 16


def find(config: Fields, tensors: Tensors) -> Found:
    result = Found()
    for kind in _KINDS:
        for weight in modules(tensors, f"{_STATE}{kind}"):
            result.matrices[weight] = _four_bits(tensors, weight, kind)
    for module in modules(tensors, "SCB"):
        result.matrices[f"{module}.weight"] = _eight_bits(tensors, module)
        result.unused.update({f"{module}.weight_format"} & set(tensors.names()))
    if not result.matrices:
        raise ModelLoadError(
            f"{tensors.path}: no tensor has the quantisation state that {config.source} tells of.",
            "Take a checkpoint that was saved quantised.",
        )
    return result


def _eight_bits(tensors: Tensors, module: str) -> Matrix:
    weight, largest, form = (f"{module}.{part}" for part in ("weight", "SCB", "weight_format"))
    n_out, n_in = require(tensors, weight, ("I8",), (-1, -1))
    require(tensors, largest, ("F32", "F16", "BF16"), (n_out,))
    if form in tensors.names() and require(tensors, form, ("U8",), ()) == () and tensors.tensor(form).item() != 0:
        raise bad(tensors, form, "says that rows do not follow each other", "Save the model with a newer bitsandbytes.")
    group = group_of(tensors, weight, "INT8", n_in, n_in)
    return Matrix("INT8", (n_out, n_in), group, (weight, largest), partial(_load_eight, tensors, weight, largest))


def _load_eight(tensors: Tensors, weight: str, largest: str) -> Weight:
    data, scales = tensors.tensor(weight), tensors.tensor(largest).float().unsqueeze(1) / 127
    return Weight("INT8", (data.shape[0], data.shape[1]), data, scales)


def _four_bits(tensors: Tensors, weight: str, kind: str) -> Matrix:
    state_name = f"{weight}.{_STATE}{kind}"
    state = _state(tensors, state_name)
    n_out, n_in = _shape(tensors, state_name, state)
    block = state.integer("blocksize")
    if state.text("quant_type") != kind:
        raise state.bad("quant_type", f"is {state.text('quant_type')} instead of {kind}")
    stored = require(tensors, weight, _STORAGE)
    n_bytes = ITEM_BYTES[tensors.dtype(weight)]
    for size in stored:
        n_bytes *= size
    if n_bytes * 2 != n_out * n_in:
        raise bad(tensors, weight, f"has {n_bytes} bytes, which are not {n_out} x {n_in} values of four bits")
    group = group_of(tensors, weight, _KINDS[kind], n_in, math.gcd(n_in, block))
    n_blocks = -(-n_out * n_in // block)
    absmax, codes = f"{weight}.absmax", f"{weight}.quant_map"
    require(tensors, codes, ("F32",), (16,))
    parts = [weight, absmax, codes, state_name]
    nested = state.get("nested_blocksize", None) is not None
    if nested:
        require(tensors, absmax, ("U8",), (n_blocks,))
        nested_absmax, nested_map = f"{weight}.nested_absmax", f"{weight}.nested_quant_map"
        require(tensors, nested_absmax, ("F32",), (-(-n_blocks // state.integer("nested_blocksize")),))
        require(tensors, nested_map, ("F32",), (256,))
        state.number("nested_offset", 0.0, positive=False)
        parts += [nested_absmax, nested_map]
    else:
        require(tensors, absmax, ("F32", "F16", "BF16"), (n_blocks,))
    load = partial(_load_four, tensors, weight, _KINDS[kind], (n_out, n_in), block, group, state if nested else None)
    return Matrix(_KINDS[kind], (n_out, n_in), group, tuple(parts), load, n_copies=2)


def _load_four(
    tensors: Tensors, weight: str, qtype: str, shape: tuple[int, int], block: int, group: int, nested: Fields | None
) -> Weight:
    """nested: the state, where scales are quantised too."""
    n_out, n_in = shape
    codes = tensors.tensor(f"{weight}.quant_map")
    if not torch.allclose(codes, torch.tensor(CODES[qtype]), rtol=1e-6, atol=1e-9):
        raise bad(tensors, f"{weight}.quant_map", f"has other values than {qtype}", "Take another quantisation of the model.")
    octets = tensors.tensor(weight).flatten().view(torch.uint8).view(n_out, n_in // 2)
    scales = tensors.tensor(f"{weight}.absmax")
    if nested is not None:
        scales = _unnested(tensors, weight, scales, nested)
    scales = scales.float()
    if group != block:
        scales = scales[torch.arange(n_out * n_in // group) * group // block]
    return Weight(qtype, shape, octets >> 4 | octets << 4, scales.view(n_out, n_in // group).contiguous())


def _unnested(tensors: Tensors, weight: str, places: Tensor, state: Fields) -> Tensor:
    size = state.integer("nested_blocksize")
    factors = tensors.tensor(f"{weight}.nested_absmax").repeat_interleave(size)[: len(places)]
    values = tensors.tensor(f"{weight}.nested_quant_map")[places.int()]
    return values * factors + state.number("nested_offset", 0.0, positive=False)


def _state(tensors: Tensors, name: str) -> Fields:
    (n_bytes,) = require(tensors, name, ("U8",), (-1,))
    try:
        if n_bytes > _MOST_STATE:
            raise ValueError(f"{n_bytes} bytes")
        value = json.loads(bytes(tensors.tensor(name).tolist()))
    except (ValueError, RecursionError) as error:
        raise bad(tensors, name, f"cannot be read as JSON ({error})") from None
    return Fields(value, f"{tensors.path}: {tensors.stored_name(name)}")


def _shape(tensors: Tensors, name: str, state: Fields) -> tuple[int, int]:
    shape = state.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(size) is int and 0 < size < 2**31 for size in shape):
        raise state.bad("shape", f"is {shape}, expected numbers of rows and columns", DAMAGED)
    return shape[0], shape[1]
