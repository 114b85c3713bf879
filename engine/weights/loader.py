"""Open a checkpoint of either format, and fill a model's parameters from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.weights import pages
from engine.weights.arranged import arranged
from engine.weights.checkpoint import Checkpoint
from engine.weights.config import ModelConfig
from engine.weights.gguf.checkpoint import GGUFCheckpoint
from engine.weights.half_split import in_half_split_order
from engine.weights.safetensors import SafetensorsCheckpoint
from kernels.ops import DENSE, Weight
from kernels.reference import dequant

_QTYPES = {dtype: qtype for qtype, dtype in DENSE.items()}
_READ_AHEAD_BYTES = 64 << 20
_LARGE_BYTES = 32 << 20
_TILE_ROWS = 512
_COMPARED_ROWS = 64


class Slot(Protocol):
    """A parameter that waits for its value."""

    shape: tuple[int, ...]

    def fill(self, value: Weight | Tensor) -> bool:
        """Take a Weight where shape is 2-D, a float32 vector where it is 1-D; called exactly once.

        Returns whether the slot goes on to refer to the value's memory, which may lie in the mapped file.
        """
        ...


class Fillable(Protocol):
    def parameters(self) -> Mapping[str, Slot]:
        """Hugging Face name -> slot, for every parameter; a tied output matrix is not one."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Read headers and configuration of a .gguf file or a folder in Hugging Face's layout; no weights yet.

    Raises ModelLoadError when it is neither, incomplete, damaged, or of an unsupported kind.
    """
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if files and not (path / "config.json").exists():
            raise ModelLoadError(f"{path}: a folder with GGUF files is not one model.", f"Name a file of it, such as {files[0]}.")
        return in_half_split_order(arranged(_tied_if_alike(SafetensorsCheckpoint(path))))
    if not path.is_file():  # a pipe would be waited for
        raise ModelLoadError(f"{path}: there is no such file or folder.", "Check the path.")
    return in_half_split_order(arranged(GGUFCheckpoint(path)))


def _tied_if_alike(checkpoint: SafetensorsCheckpoint) -> SafetensorsCheckpoint:
    """An output matrix in the files that is not the embedding is one of its own, whatever the configuration says: transformers
    takes it so too. Some rows tell.
    """
    names = _embedding_and_head(checkpoint.config)
    if checkpoint.config.tie_embeddings and set(names) <= set(checkpoint.names()):
        embedding, head = map(checkpoint.weight, names)
        rows = torch.linspace(0, embedding.shape[0] - 1, _COMPARED_ROWS).long()
        alike = (embedding.qtype, embedding.shape) == (head.qtype, head.shape)
        if not alike or not torch.equal(*(dequant.dense(w.map(lambda tensor: tensor[rows])) for w in (embedding, head))):
            checkpoint.config = replace(checkpoint.config, tie_embeddings=False)
    return checkpoint


def _embedding_and_head(config: ModelConfig) -> tuple[str, str]:
    files = config.borrowed_files
    return (files.embedding, files.head) if files else ("model.embed_tokens.weight", "lm_head.weight")


def fill(
    model: Fillable,
    checkpoint: Checkpoint,
    *,
    quantization: str = "auto",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Fill every slot of the model once; every tensor of the checkpoint must be used, but for a tied output matrix.

    quantization "none" makes matrices dense in `dtype`; any other gives slots what the checkpoint gives, on a CPU as views on
    the mapped file where it can. The disk reads ahead of the slot being filled, and pages of the file that a slot does not keep
    are given back, so that a file and what was made of it are never in memory both. progress is called with (bytes done,
    bytes in all), the last time with both equal. Raises ModelLoadError, naming the tensors, when names or shapes of model
    and checkpoint do not agree.
    """
    slots = model.parameters()
    _compare(slots, checkpoint)
    # Large ones first: one that is packed is in memory twice meanwhile, for which there is room as long as little else is there.
    names = sorted(slots, key=lambda name: checkpoint.stored_bytes(name) < _LARGE_BYTES)
    coming = iter(names)
    done = ahead = 0
    for name in names:
        slot = slots[name]
        while ahead < done + _READ_AHEAD_BYTES and (later := next(coming, None)) is not None:
            checkpoint.read_ahead(later)
            ahead += checkpoint.stored_bytes(later)
        if len(slot.shape) == 2:
            weight = checkpoint.weight(name)
            weight = _moved(_dense(weight, dtype) if quantization == "none" else weight, device)
            if slot.fill(weight) and checkpoint.is_stored(name, weight.data):
                pages.touch(weight.data)  # the first answer should not wait for the disk, and progress should mean something
            else:
                checkpoint.give_back(name)
        else:
            slot.fill(checkpoint.vector(name).to(device, copy=True))
        done += checkpoint.stored_bytes(name)
        if progress:
            progress(done, checkpoint.n_bytes)
    if progress and done < checkpoint.n_bytes:
        progress(checkpoint.n_bytes, checkpoint.n_bytes)


def _compare(slots: Mapping[str, Slot], checkpoint: Checkpoint) -> None:
    names = set(checkpoint.names())
    missing = sorted(slots.keys() - names)
    head = _embedding_and_head(checkpoint.config)[1]
    unused = sorted(names - slots.keys() - ({head} if checkpoint.config.tie_embeddings else set()))
    misshapen = [
        f"{name} {list(checkpoint.shape(name))} instead of {list(slot.shape)}"
        for name, slot in slots.items()
        if name in names and checkpoint.shape(name) != tuple(slot.shape)
    ]
    problems = [("is missing", missing), ("has no place in the model", unused), ("has another shape", misshapen)]
    found = [f"{_some(tensors)} {what}" for what, tensors in problems if tensors]
    if found:
        raise ModelLoadError(
            f"{checkpoint.path}: tensors and the {checkpoint.config.family} configuration do not agree: {'; '.join(found)}.",
            "The checkpoint is incomplete, or a variant of the model that Pagewell does not know.",
        )


def _some(tensors: list[str]) -> str:
    return ", ".join(tensors[:3]) + (f" and {len(tensors) - 3} more, each" if len(tensors) > 3 else "")


def _dense(weight: Weight, dtype: torch.dtype) -> Weight:
    values = torch.empty(weight.shape, dtype=dtype)
    for start in range(0, weight.shape[0], _TILE_ROWS):
        part = slice(start, start + _TILE_ROWS)
        values[part] = dequant.dense(weight.map(lambda tensor, part=part: tensor[part]))
    return Weight(_QTYPES[dtype], weight.shape, values)


def _moved(weight: Weight, device: str) -> Weight:
    if torch.device(device).type == "cpu":
        return weight
    return weight.map(lambda tensor: tensor.to(device))
