"""Quantising a dense checkpoint as it is loaded: which matrices, to what, and a Checkpoint that does it.

Only matrices that layers multiply with are quantised; embeddings and the output matrix to INT8, since every token goes through
them; routers of experts, a thousandth of a model whose choices are all or nothing, stay as they are.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections.abc import Mapping
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.quant.base import weight_bytes
from engine.quant.dense import WORKING_BYTES, quantized
from engine.quant.stored import Store, Stored, Wanted
from engine.weights.checkpoint import Checkpoint
from engine.weights.config import ModelConfig
from engine.weights.gguf.split import parts
from kernels.ops import DENSE, ROW_UNIT, Weight

log = logging.getLogger(__name__)

VERSION = 2
"""Of what is made of a checkpoint: one more whenever the same scheme makes other weights between two versions of Pagewell."""
_ENDS = re.compile(r"(model\.embed_tokens(_per_layer)?|lm_head)\.weight")
_ROUTERS = re.compile(r".*\.(gate|router(\.proj)?|shared_expert_gate|gate_inp)\.weight")
_MADE_DENSE = re.compile(r".*\.self_attn\.(kv|k|v)_b_proj\.weight")
"""By what uses them (engine/models/latent.py), so that quantising them would cost memory and values alike."""


class Target(NamedTuple):
    qtype: str
    group: int


SCHEMES: dict[str, Target] = {
    "int8": Target("INT8", 128),
    "int4": Target("INT4", 64),
    "fp8": Target("FP8", 0),
    "nf4": Target("NF4", 64),
    "bitsandbytes": Target("NF4", 64),
}
"""Values of --quantization that quantise -> what to, with the most values of a scale, 0 for a row. bitsandbytes means its NF4."""


def target(scheme: str, name: str, shape: tuple[int, ...], borrowed: Mapping[str, str] | None = None) -> Target | None:
    """What a tensor of a dense checkpoint becomes; None: it stays as it is.

    borrowed: BorrowedFiles.matrices, of a model that transformers computes.
    """
    if len(shape) != 2 or shape[1] % ROW_UNIT or _ROUTERS.fullmatch(name) or _MADE_DENSE.fullmatch(name):
        return None
    if borrowed is not None and borrowed.get(name) not in ("product", "end"):
        return None
    is_end = _ENDS.fullmatch(name) if borrowed is None else borrowed[name] == "end"
    qtype, group = SCHEMES["int8"] if is_end else SCHEMES[scheme]
    return Target(qtype, math.gcd(group, shape[1]) if group else shape[1])


def made_of(quantization: str) -> str:
    """A name for what --quantization makes, the same for those that make the same: "nf4-64"; any other setting is its own."""
    if quantization not in SCHEMES:
        return quantization
    qtype, group = SCHEMES[quantization]
    return f"{qtype.lower()}-{group}"


def weights_bytes(checkpoint: Checkpoint, quantization: str, dtype: torch.dtype) -> int:
    """Memory for all tensors of a checkpoint as --quantization wants them; dense ones in `dtype` if that is none.

    quantization: "auto", "none" or one of SCHEMES. Reads nothing but shapes.
    """
    total, borrowed = 0, _borrowed(checkpoint)
    for name in checkpoint.names():
        if name == "lm_head.weight" and checkpoint.config.tie_embeddings:
            continue
        shape = checkpoint.shape(name)
        made = target(quantization, name, shape, borrowed) if quantization in SCHEMES else None
        if made is not None:
            total += weight_bytes(made.qtype, (shape[0], shape[1]), made.group, zeros=made.qtype == "INT4")
        elif len(shape) == 2 and quantization != "none":
            total += checkpoint.weight_bytes(name)
        else:
            total += math.prod(shape) * (dtype.itemsize if len(shape) == 2 else 4)
    return total


def quantised_already(checkpoint: Checkpoint) -> str:
    """The first matrix of a checkpoint that is no dense one; empty where there is none."""
    matrices = (name for name in checkpoint.names() if len(checkpoint.shape(name)) == 2)
    return next((name for name in matrices if checkpoint.qtype(name) not in DENSE), "")


def _borrowed(checkpoint: Checkpoint) -> Mapping[str, str] | None:
    files = checkpoint.config.borrowed_files
    return files.matrices if files is not None else None


class QuantizedCheckpoint:
    """A dense checkpoint whose matrices are quantised as they are asked for, or come from what an earlier load kept on disk."""

    def __init__(self, checkpoint: Checkpoint, scheme: str, store: Store | None = None) -> None:
        """Raises ModelLoadError for a checkpoint that is quantised already."""
        if name := quantised_already(checkpoint):
            raise ModelLoadError(
                f"{checkpoint.path}: the model is quantised already (its {name} is {checkpoint.qtype(name)}), and "
                f"quantization is {scheme}.",
                "Leave --quantization out, or take the model in float16 or bfloat16.",
            )
        self._checkpoint = checkpoint
        self._scheme = scheme
        borrowed = _borrowed(checkpoint)
        self._targets = {name: target(scheme, name, checkpoint.shape(name), borrowed) for name in checkpoint.names()}
        self._store = store

    @cached_property
    def _stored(self) -> Stored | None:
        """Opened by the first question for a weight, as others may only ask for sizes: it moves files on the disk."""
        if self._store is None:
            return None
        unused = {"lm_head.weight"} if self.config.tie_embeddings else set()
        wanted = {
            name: Wanted(*made, self.shape(name))
            for name, made in self._targets.items()
            if made is not None and name not in unused
        }
        try:
            return self._store.open(_key(self._checkpoint, self._scheme), wanted)
        except OSError as error:
            log.warning("Quantised weights are not kept on disk: %s cannot be used: %s", self._store.folder, error)
            return None

    @property
    def path(self) -> Path:
        return self._checkpoint.path

    @property
    def config(self) -> ModelConfig:
        return self._checkpoint.config

    @property
    def kind(self) -> str:
        return self._checkpoint.kind

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._checkpoint.metadata

    @property
    def n_bytes(self) -> int:
        return self._checkpoint.n_bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self._checkpoint.digest} {made_of(self._scheme)} {VERSION}".encode()).hexdigest()

    def names(self) -> tuple[str, ...]:
        return self._checkpoint.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._checkpoint.shape(name)

    def stored_bytes(self, name: str) -> int:
        return self._checkpoint.stored_bytes(name)

    def weight_bytes(self, name: str) -> int:
        made, shape = self._targets.get(name), self.shape(name)
        if made is None:
            return self._checkpoint.weight_bytes(name)
        return weight_bytes(made.qtype, (shape[0], shape[1]), made.group, zeros=made.qtype == "INT4")

    def unpacking_bytes(self, name: str) -> int:
        made = self._targets.get(name)
        return self._checkpoint.unpacking_bytes(name) if made is None else min(WORKING_BYTES, 4 * 4 * math.prod(self.shape(name)))

    def qtype(self, name: str) -> str:
        made = self._targets.get(name)
        return made.qtype if made is not None else self._checkpoint.qtype(name)

    def weight(self, name: str) -> Weight:
        made = self._targets.get(name)
        if made is None:
            return self._checkpoint.weight(name)
        kept = self._stored.weight(name) if self._stored is not None else None
        if kept is not None:
            return kept
        weight = quantized(self._checkpoint.weight(name), *made)
        if self._stored is not None:
            self._stored.keep(name, weight)
        return weight

    def vector(self, name: str) -> Tensor:
        return self._checkpoint.vector(name)

    def is_stored(self, name: str, data: Tensor) -> bool:
        """Nothing that was quantised is: what is kept on disk is read, and checked, as a whole."""
        return self._targets.get(name) is None and self._checkpoint.is_stored(name, data)

    def read_ahead(self, name: str) -> None:
        if self._stored is None or not self._stored.has(name):
            self._checkpoint.read_ahead(name)

    def give_back(self, name: str) -> None:
        if self._stored is None or not self._stored.has(name):
            self._checkpoint.give_back(name)


def opened(checkpoint: Checkpoint, config: EngineConfig, *, keeps: bool = False) -> Checkpoint:
    """The checkpoint as config.quantization wants it: itself where that is auto or none.

    keeps: what is made of it is kept on disk, as config says, and comes from there; without it, nothing on the disk changes.
    Raises ModelLoadError for one that is quantised already.
    """
    if config.quantization not in SCHEMES:
        return checkpoint
    is_kept = keeps and config.weights_disk_folder is not None and config.weights_disk_space != 0
    store = Store(Path(config.weights_disk_folder), config.weights_disk_space) if is_kept else None
    return QuantizedCheckpoint(checkpoint, config.quantization, store)


def _key(checkpoint: Checkpoint, scheme: str) -> str:
    """Changes with the files, for the digest knows samples of their bytes only, and with what makes weights of them."""
    path = checkpoint.path
    files = [*path.glob("*.safetensors"), *path.glob("*.json")] if path.is_dir() else parts(path)
    stamps = sorted((file.name, status.st_size, status.st_mtime_ns) for file in files if (status := file.stat()))
    made_by = checkpoint.digest, stamps, metadata.version("pagewell"), VERSION
    return f"{hashlib.sha256(repr(made_by).encode()).hexdigest()[:40]}-{made_of(scheme)}"
