"""Which format a checkpoint is quantised in, by its config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.json_file import read_object
from engine.quant import awq, bitsandbytes, compressed_tensors, fp8, gptq, modelopt, mxfp4
from engine.quant.base import Found, Tensors
from engine.weights.fields import Fields
from engine.weights.safetensors_files import DOWNLOAD

SECTIONS = ("quantization_config", "compression_config")
"""The second is what early versions of llm-compressor wrote."""
_OF_MODELOPT = "hf_quant_config.json"
_OTHER = "Take the model in one of these, in float16 or bfloat16, or as a GGUF file."


def section(metadata: Mapping[str, Any], source: str) -> Fields | None:
    """What config.json says about quantisation, of the model or of its text half; None where it is not quantised."""
    text = metadata.get("text_config")
    for values in (metadata, text if isinstance(text, Mapping) else {}):
        for name in SECTIONS:
            if values.get(name):
                return Fields(values[name], f"{source}: {name}")
    return None


def find(metadata: Mapping[str, Any], source: str, tensors: Tensors) -> Found:
    """The matrices that quantised tensors make up; none of them where nothing says that they are quantised.

    Raises ModelLoadError, naming field or tensor, for a method that is not known, and for what does not agree with it.
    """
    config = section(metadata, source) or _beside(tensors.path)
    if config is None:
        return Found()
    method = config.text("quant_method", _told_by(config))
    if method not in METHODS:
        raise ModelLoadError(
            f"{config.source}: quant_method is {method!r}, which is not supported.", f"Supported: {', '.join(METHODS)}. {_OTHER}"
        )
    return METHODS[method](config, tensors)


def _beside(folder: Path) -> Fields | None:
    """What ModelOpt says in a file of its own, beside a config.json that may be silent."""
    values = read_object(folder / _OF_MODELOPT, DOWNLOAD) or {}
    config = Fields(values, str(folder / _OF_MODELOPT)).section("quantization")
    return config if config.get("quant_algo", None) is not None else None


def _told_by(config: Fields) -> str:
    """The method of files that do not name it."""
    if config.get("quant_algo", None) is not None:
        return "modelopt"
    if config.get("config_groups", None) is not None:
        return "compressed-tensors"
    return "bitsandbytes" if config.get("load_in_4bit", False) or config.get("load_in_8bit", False) else "unknown"


def _auto_round(config: Fields, tensors: Tensors) -> Found:
    """auto-round's own format: the layout of GPTQ or AWQ, in some of its versions with zero points as they are."""
    packing = config.text("packing_format", "auto_round:auto_gptq")
    kind = config.text("data_type", "int")
    if kind != "int":
        raise config.bad("data_type", f"is {kind}", "Take a checkpoint of integers, or one that was saved as compressed-tensors.")
    overrides = config.get("extra_config", {})
    if "awq" in packing:
        return awq.found(config, tensors, overrides)
    return gptq.found(config, tensors, 1 if "gptq" in packing and "gptqmodel" not in packing else 0, overrides)


METHODS: dict[str, Callable[[Fields, Tensors], Found]] = {
    "gptq": gptq.find,
    "awq": awq.find,
    "fp8": fp8.find,
    "fbgemm_fp8": fp8.find,
    "compressed-tensors": compressed_tensors.find,
    "bitsandbytes": bitsandbytes.find,
    "modelopt": modelopt.find,
    "mxfp4": mxfp4.find,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
}
"""quant_method -> what reads it."""
