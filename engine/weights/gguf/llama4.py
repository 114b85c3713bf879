"""Llama 4 from a GGUF's metadata, which says little of it: the rest is what llama.cpp takes for all of these models."""

from __future__ import annotations

from dataclasses import replace

from engine.weights.config import ModelConfig
from engine.weights.fields import Fields
from engine.weights.gguf.experts import experts, settled
from engine.weights.gguf.plain import Described, pattern_windows, plain
from engine.weights.hf.llama4 import STRETCHING

_CHUNK = 8192
_PERIOD = 4
"""The last layer of so many is not turned."""
_GROWTH = 0.1, 8192
_ANOTHER = "Take the safetensors of this model."
_WITHOUT_NORMS = 128
"""Experts of the model whose heads have no norms (Maverick)."""


def llama4(fields: Fields, file: Described) -> ModelConfig:
    chunk = fields.integer("attention.sliding_window", _CHUNK, low=0)
    if chunk != _CHUNK:
        what = f"is {chunk}, but the layers' chunks are of {_CHUNK} tokens in all Llama 4 files that are known"
        raise fields.bad("attention.sliding_window", what, _ANOTHER)
    config = plain(settled(fields), file, "llama4", theta=500_000.0)
    routed = experts(settled(fields), file, config.n_layers, normalised=False)
    if routed is None:
        what = "is not to be had: the file has no experts, and does not say which of its layers turn their heads"
        raise fields.bad("expert_count", what, _ANOTHER)
    rope = config.ropes[0]
    if rope.scaling in STRETCHING:
        raise fields.bad("rope.scaling.type", f"is {rope.scaling}, which of Llama 4 models is not supported", _ANOTHER)
    if fields.number("rope.freq_base_swa", rope.theta) != rope.theta:
        raise fields.bad("rope.freq_base_swa", "differs from rope.freq_base, which of Llama 4 models is not supported", _ANOTHER)
    return replace(
        config,
        ropes=tuple(rope if (i + 1) % _PERIOD else None for i in range(config.n_layers)),
        windows=pattern_windows(fields, config.n_layers, _PERIOD, default=_CHUNK),
        chunked_windows=True,
        head_norms=routed.n_experts != _WITHOUT_NORMS,
        query_growth=_GROWTH,
        query_shift=1,
        experts=replace(routed, routing=replace(routed.routing, scores="chosen_sigmoid"), gains_first=True),
    )
