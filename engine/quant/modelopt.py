"""ModelOpt of NVIDIA: FP8 with a scale for all of a matrix, and NVFP4.

NVFP4: weight uint8 [out, in / 2] of two E2M1, the first in the low nibble; weight_scale E4M3 [out, in / 16], times
weight_scale_2, one for the matrix. Other than in compressed-tensors both multiply. Some exports describe that
in hf_quant_config.json alone.
"""

from __future__ import annotations

from functools import partial

import torch

from engine.errors import ModelLoadError
from engine.quant import fp8
from engine.quant.base import Found, Matrix, Tensors, group_of, modules, require
from engine.quant.compressed_tensors import e2m1_weight
from engine.weights.fields import Fields

GROUP = 16


def find(config: Fields, tensors: Tensors) -> Found:
    """config: quantization_config, whose quant_algo is FP8 or NVFP4."""
    algorithm = config.text("quant_algo")
    if any(name.endswith(".pre_quant_scale") for name in tensors.names()) or algorithm not in ("FP8", "NVFP4"):
        raise config.bad("quant_algo", f"is {algorithm}", "Take the model in FP8 or NVFP4, or in another quantisation.")
    if algorithm == "FP8":
        return fp8.found(tensors, None)
    result = Found(unused={name for name in tensors.names() if name.rpartition(".")[2] in fp8.ACTIVATIONS})
    for module in modules(tensors, "weight_scale_2"):
        parts = tuple(f"{module}.{part}" for part in ("weight", "weight_scale", "weight_scale_2"))
        n_out, n_bytes = require(tensors, parts[0], ("U8",), (-1, -1))
        n_in = 2 * n_bytes
        require(tensors, parts[1], ("F8_E4M3",), (n_out, -(-n_in // GROUP)))
        require(tensors, parts[2], ("F32",), (), (1,))
        group = group_of(tensors, parts[0], "E2M1", n_in, GROUP)
        load = partial(e2m1_weight, tensors, parts, torch.mul)
        result.matrices[parts[0]] = Matrix("E2M1", (n_out, n_in), group, parts, load)
    if not result.matrices:
        raise ModelLoadError(f"{tensors.path}: no tensor is named weight_scale_2.", "Take a checkpoint that was saved quantised.")
    return result
