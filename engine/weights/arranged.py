"""ArrangedCheckpoint: a checkpoint whose tensors are cut and joined until they are those that the model's layers use.

Files have the matrices of experts one by one, as one tensor of three dims, or gate and up in one; layers use one matrix for
each projection, with the rows of all experts one behind the other. Names of families that call a thing otherwise are put
into the words of most. Rows are cut and joined as they are stored, quantised or not, part by part, so that no more than one
matrix is in memory twice.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import ModelLoadError
from engine.quant.base import ZERO_POINTS
from engine.weights.checkpoint import Checkpoint
from engine.weights.config import ModelConfig
from engine.weights.families import EXPERT_NAMES, RENAMED, SPLITS, Split
from kernels.ops import DENSE, Weight
from kernels.reference import dequant

log = logging.getLogger(__name__)

_ONE = re.compile(r"(.*\.experts)\.(0|[1-9]\d{0,4})\.(gate_proj|up_proj|down_proj)\.(weight|bias)")
_ALL = re.compile(r"(.*\.experts)\.(gate_up_proj|gate_proj|up_proj|down_proj)(?:\.weight|([._]bias))?")
_LAYER = re.compile(r"model\.layers\.(\d+)\..*")
_OF_HEADS = re.compile(r".*\.self_attn\.(?:k_b_proj|v_b_proj)\.weight")
"""Matrices of all heads, which files have in three dims."""
_KEYS = re.compile(r"model\.layers\.(\d+)\.self_attn\.(?:k_proj|v_proj|k_norm|v_norm)\..*")
"""What layers that read the keys and values of others have no use for, though files have it."""
_CONVOLUTIONS = ("conv1d.weight", "conv.conv.weight")
_VECTORS = ("e_score_correction_bias", ".A_log", ".D", "mamba.norm.weight")
_ANOTHER = "Take another conversion of the model."


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a stored tensor, all of whose dims but the last count as rows."""

    stored: str
    rows: slice | Tensor
    turned: slice | None = None
    """Those rows are a matrix [in, out], of whose transposed these rows are taken."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A tensor as layers use it: pieces, one behind the other."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


class ArrangedCheckpoint:
    """See Checkpoint; what a name gives is the arrangement of stored tensors, or the stored tensor as it is."""

    def __init__(self, stored: Checkpoint, made: dict[str, Arrangement]) -> None:
        self.stored = stored
        self.path: Path = stored.path
        self.config = stored.config
        self.kind = stored.kind
        self.metadata = stored.metadata
        self._made = made
        self.unused = _unused(stored, made)
        """Heads that predict several tokens, which nothing uses yet, and keys that layers take from others."""
        keys = sum(_is_key_of_another(_renamed(name, self.config), self.config) for name in self.unused)
        for n, what in ((len(self.unused) - keys, "heads that predict several tokens"), (keys, "layers that use others' keys")):
            if n:
                log.info("%s: %d tensors of %s are left out.", self.path, n, what)
        self.n_bytes = stored.n_bytes - sum(map(stored.stored_bytes, self.unused))

    @property
    def digest(self) -> str:
        return self.stored.digest

    def names(self) -> tuple[str, ...]:
        return tuple(self._made)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._of(name).shape

    def stored_bytes(self, name: str) -> int:
        return sum(
            self.stored.stored_bytes(piece.stored) * _n_rows(self.stored, piece) // _all_rows(self.stored, piece.stored)
            for piece in self._of(name).pieces
        )

    def weight_bytes(self, name: str) -> int:
        return sum(
            self.stored.weight_bytes(piece.stored) * _n_rows(self.stored, piece) // _all_rows(self.stored, piece.stored)
            for piece in self._of(name).pieces
        )

    def unpacking_bytes(self, name: str) -> int:
        """Pieces of one stored tensor at a time."""
        return max(self.stored.unpacking_bytes(piece.stored) for piece in self._of(name).pieces)

    def qtype(self, name: str) -> str:
        return self.stored.qtype(self._of(name).pieces[0].stored)

    def weight(self, name: str) -> Weight:
        made = self._of(name)
        if (whole := whole_of(made)) is not None:
            if len(self.stored.shape(whole)) < len(made.shape) == 2:
                return Weight("F32", (1, made.shape[1]), self.stored.vector(whole)[None])
            return self.stored.weight(whole)
        return self._joined(name, made)

    def vector(self, name: str) -> Tensor:
        made = self._of(name)
        if (whole := whole_of(made)) is not None and self.stored.shape(whole) == made.shape:
            return self.stored.vector(whole)
        values = [self._values(piece.stored)[piece.rows] for piece in made.pieces]
        return torch.cat(values).reshape(made.shape)

    def is_stored(self, name: str, data: Tensor) -> bool:
        whole = whole_of(self._of(name))
        return whole is not None and self.stored.is_stored(whole, data)

    def read_ahead(self, name: str) -> None:
        for stored in dict.fromkeys(piece.stored for piece in self._of(name).pieces):
            self.stored.read_ahead(stored)

    def give_back(self, name: str) -> None:
        for stored in dict.fromkeys(piece.stored for piece in self._of(name).pieces):
            self.stored.give_back(stored)

    def _of(self, name: str) -> Arrangement:
        if name not in self._made:
            self.stored.shape(name)  # raises for what is not there
            return _unchanged(self.stored, name)
        return self._made[name]

    def _values(self, stored: str) -> Tensor:
        """Of a stored tensor of any shape, in one row."""
        if len(self.stored.shape(stored)) == 1 or self.kind == "gguf":
            return self.stored.vector(stored).flatten()
        return dequant.dense(self.stored.weight(stored)).flatten()

    def _joined(self, name: str, made: Arrangement) -> Weight:
        """The pieces copied into memory of their own, one after the other; what was read of the file is given back."""
        joined: Weight | None = None
        end, of_stored, weight = 0, "", None
        of_many = ".experts." in name or len({piece.stored for piece in made.pieces}) > 1
        for piece in made.pieces:
            if piece.stored != of_stored:  # one that is unpacked is so once for all pieces of it
                of_stored, weight = piece.stored, self.stored.weight(piece.stored)
            part = self._part(piece, weight)
            if of_many and part.order is not None:
                raise ModelLoadError(
                    f"{self.path}: columns of {piece.stored}, a part of {name}, are in an order of their own (GPTQ's desc_act).",
                    "Take a checkpoint that was quantised without desc_act.",
                )
            if joined is None:
                joined = part.map(lambda tensor: tensor.new_empty(made.shape[0], *tensor.shape[1:]))
            elif joined.zeros is None and part.zeros is not None and joined.qtype == part.qtype:  # formats leave middle ones out
                joined = replace(joined, zeros=part.zeros.new_full(joined.scales.shape, ZERO_POINTS[joined.qtype]))
            self._check_alike(name, joined, part)
            start, end = end, end + part.shape[0]
            for theirs, ours in ((part.data, joined.data), (part.scales, joined.scales), (part.zeros, joined.zeros)):
                if ours is not None:
                    ours[start:end] = ZERO_POINTS[joined.qtype] if theirs is None else theirs
            if len(made.pieces) > 1:
                self.stored.give_back(piece.stored)
        return joined

    def _part(self, piece: Piece, weight: Weight) -> Weight:
        if piece.turned is None:
            return weight.map(lambda tensor: tensor[piece.rows])
        if weight.qtype not in DENSE:
            raise ModelLoadError(f"{self.path}: {piece.stored} is quantised along the wrong dim ({weight.qtype}).", _ANOTHER)
        turned = weight.data[piece.rows].T[piece.turned]
        return Weight(weight.qtype, (turned.shape[0], turned.shape[1]), turned)

    def _check_alike(self, name: str, first: Weight, other: Weight) -> None:
        alike = first.qtype == other.qtype and first.data.shape[1:] == other.data.shape[1:]
        alike = alike and (first.scales is None or first.scales.shape[1:] == other.scales.shape[1:])
        if not alike:
            raise ModelLoadError(
                f"{self.path}: the parts of {name} are not of one type: {first.qtype} and {other.qtype}.",
                "Experts of a layer have to be quantised alike. " + _ANOTHER,
            )


def arranged(stored: Checkpoint) -> Checkpoint:
    """As the layers of its family use it: the checkpoint itself, where that is how it is stored."""
    made = _arrange(stored)
    as_stored = (whole_of(arrangement) == name and arrangement.shape == stored.shape(name) for name, arrangement in made.items())
    return stored if all(as_stored) and not _unused(stored, made) else ArrangedCheckpoint(stored, made)


def whole_of(made: Arrangement) -> str | None:
    """The stored tensor that this is all of, if it is one."""
    first = made.pieces[0]
    is_all = len(made.pieces) == 1 and first.turned is None and isinstance(first.rows, slice) and first.rows == slice(None)
    return first.stored if is_all else None


def _unused(stored: Checkpoint, made: dict[str, Arrangement]) -> tuple[str, ...]:
    used = {piece.stored for arrangement in made.values() for piece in arrangement.pieces}
    return tuple(name for name in stored.names() if name not in used)


def _arrange(stored: Checkpoint) -> dict[str, Arrangement]:
    config, n_heads = stored.config, _heads_behind(stored)
    made: dict[str, Arrangement] = {}
    singles: dict[str, dict[int, str]] = {}
    for name in stored.names():
        common = _renamed(name, config) if stored.kind == "safetensors" else name
        layer = _LAYER.fullmatch(common)
        if layer and int(layer[1]) >= config.n_layers + n_heads:
            raise ModelLoadError(
                f"{stored.path}: {name} is of a layer too many: the configuration says {config.n_layers} layers"
                f"{f' and {n_heads} of heads that predict several tokens' if n_heads else ''}.",
                "Configuration and weights are of two models, or num_nextn_predict_layers is missing; download the model again.",
            )
        if common.startswith(("mtp.", "model.mtp_")) or (layer and int(layer[1]) >= config.n_layers):
            continue
        if _is_key_of_another(common, config):
            continue
        one, whole = _ONE.fullmatch(common), _ALL.fullmatch(common)
        if config.experts is not None and one:
            singles.setdefault(f"{one[1]}.{one[3]}.{one[4]}", {})[int(one[2])] = name
        elif config.experts is not None and whole:
            made.update(_of_all(stored, name, whole[1], whole[2], is_bias=bool(whole[3])))
        elif _OF_HEADS.fullmatch(common):
            shape = stored.shape(name)
            made[common] = Arrangement((torch.Size(shape[:-1]).numel(), shape[-1]), (Piece(name, slice(None)),))
        elif split := _split(common, config):
            made.update(_cut(stored, name, split))
        else:
            made[common] = _unchanged(stored, name)
    for common, by_expert in singles.items():
        made[common] = _stacked(stored, common, by_expert)
    return made


def _heads_behind(stored: Checkpoint) -> int:
    """Layers behind the last one that are heads which predict several tokens."""
    values, name = stored.metadata, "num_nextn_predict_layers"
    if stored.kind == "gguf":
        name = f"{values.get('general.architecture')}.nextn_predict_layers"
    elif isinstance(text := values.get("text_config"), dict) and name in text:
        values = text
    n = values.get(name)
    return n if type(n) is int and n > 0 else 0


def _is_key_of_another(common: str, config: ModelConfig) -> bool:
    """Of a layer that reads the keys and values of an earlier one."""
    layer = _KEYS.fullmatch(common)
    return bool(layer) and int(layer[1]) < config.n_layers and config.kv_source(int(layer[1])) != int(layer[1])


def _renamed(name: str, config: ModelConfig) -> str:
    for pattern, words in RENAMED.get(config.family, ()):
        name = re.sub(pattern, words, name)
    if config.experts is not None and (found := re.fullmatch(r"(.*\.experts\.\d+\.)(w[123])(\..*)", name)):
        name = found[1] + EXPERT_NAMES[found[2]] + found[3]
    return name


def _split(common: str, config: ModelConfig) -> Split | None:
    for pattern, make in SPLITS.get(config.family, ()):
        if found := re.fullmatch(pattern, common):
            return make(found, config)
    return None


def _unchanged(stored: Checkpoint, name: str) -> Arrangement:
    """But for dims of 1, which some files have and others have not, and vectors that files have as matrices."""
    shape = stored.shape(name)
    if name.endswith(_CONVOLUTIONS) and len(shape) == 2:
        shape = (shape[0], 1, shape[1])
    elif name.endswith("shared_expert_gate.weight") and len(shape) == 1:
        shape = (1, *shape)
    elif name.endswith(_VECTORS) and len(shape) == 2:
        shape = (shape[0] * shape[1],)
    return Arrangement(shape, (Piece(name, slice(None)),))


def _cut(stored: Checkpoint, name: str, split: Split) -> Iterator[tuple[str, Arrangement]]:
    shape = stored.shape(name)
    n_rows = sum(len(rows) for rows in split.values())
    if shape[0] != n_rows:
        raise ModelLoadError(
            f"{stored.path}: {name} has {shape[0]} rows, but the configuration says {n_rows}.", "Download the model again."
        )
    for common, rows in split.items():
        yield common, Arrangement((len(rows), *shape[1:]), (Piece(name, _as_slice(rows)),))


def _as_slice(rows: Tensor) -> slice | Tensor:
    """As a slice where rows follow each other."""
    first = int(rows[0])
    return slice(first, first + len(rows)) if torch.equal(rows, torch.arange(first, first + len(rows))) else rows


def _stacked(stored: Checkpoint, common: str, by_expert: dict[int, str]) -> Arrangement:
    n = stored.config.experts.n_experts
    if sorted(by_expert) != list(range(n)):
        missing = next((i for i in range(n) if i not in by_expert), n)
        raise ModelLoadError(
            f"{stored.path}: {common} has {len(by_expert)} experts instead of {n}; number {missing} is missing or too many.",
            "The checkpoint is incomplete; download it again.",
        )
    shapes = [stored.shape(by_expert[i]) for i in range(n)]
    if any(shape != shapes[0] for shape in shapes):
        raise ModelLoadError(f"{stored.path}: the experts of {common} are not of one size.", "Download the model again.")
    shape = (n * shapes[0][0], *shapes[0][1:])
    return Arrangement(shape, tuple(Piece(by_expert[i], slice(None)) for i in range(n)))


def _of_all(stored: Checkpoint, name: str, prefix: str, projection: str, *, is_bias: bool) -> Iterator[tuple[str, Arrangement]]:
    """Of a tensor of all experts: [E, rows, in], or [E, in, rows] in families that have it so; of biases [E, rows]."""
    experts, shape = stored.config.experts, stored.shape(name)
    if not is_bias and len(shape) == 2 and shape[0] % experts.n_experts == 0:  # quantised ones are served so
        shape, turned = (experts.n_experts, shape[0] // experts.n_experts, shape[1]), False
    else:
        turned = (
            stored.kind == "safetensors" and not is_bias and (experts.stored_turned or _lies_turned(stored, shape, projection))
        )
    if len(shape) != 3 - is_bias or shape[0] != experts.n_experts:
        raise ModelLoadError(
            f"{stored.path}: {name} has the shape {list(shape)} instead of one matrix for each of {experts.n_experts} experts.",
            "The checkpoint is damaged or of a variant that Pagewell does not know.",
        )
    n, (n_rows, n_in) = shape[0], (shape[1], 1) if is_bias else (shape[2], shape[1]) if turned else shape[1:]
    suffix = "bias" if is_bias else "weight"
    cuts = {projection: slice(0, n_rows)}
    if projection == "gate_up_proj":
        paired = experts.stored_paired and stored.kind == "safetensors"
        halves = (slice(0, n_rows, 2), slice(1, n_rows, 2)) if paired else (slice(0, n_rows // 2), slice(n_rows // 2, n_rows))
        cuts = dict(zip(("gate_proj", "up_proj"), halves, strict=True))
    for part, rows in cuts.items():
        served = f"{prefix}.{part}.{suffix}"
        n_part = len(range(*rows.indices(n_rows)))
        shape_of_part = (n * n_part,) if is_bias else (n * n_part, n_in)
        if turned:
            pieces = tuple(Piece(name, slice(e * n_in, (e + 1) * n_in), rows) for e in range(n))
        elif n_part == n_rows:
            pieces = (Piece(name, slice(None)),)
        else:
            starts = (e * n_rows for e in range(n))
            pieces = tuple(Piece(name, slice(first + rows.start, first + rows.stop, rows.step)) for first in starts)
        yield served, Arrangement(shape_of_part, pieces)


def _lies_turned(stored: Checkpoint, shape: tuple[int, ...], projection: str) -> bool:
    """Whether sizes tell that matrices are [in, out]: first releases of some models have them so, and transformers' own not."""
    width, size = stored.config.experts.width, stored.config.hidden_size
    n_out, n_in = (size, width) if projection == "down_proj" else (2 * width if projection == "gate_up_proj" else width, size)
    return shape[1:] == (n_in, n_out) != (n_out, n_in)


def _all_rows(stored: Checkpoint, name: str) -> int:
    shape = stored.shape(name)
    return torch.Size(shape[:-1]).numel() if len(shape) > 1 else (*shape, 1)[0]


def _n_rows(stored: Checkpoint, piece: Piece) -> int:
    """Of the stored tensor's rows, those that a piece takes, or as many as it reads of them."""
    n_all = _all_rows(stored, piece.stored)
    if isinstance(piece.rows, Tensor):
        return len(piece.rows)
    n = len(range(*piece.rows.indices(n_all)))
    if piece.turned is not None:
        n_columns = stored.shape(piece.stored)[-1]
        n = n * len(range(*piece.turned.indices(n_columns))) // n_columns
    return n
